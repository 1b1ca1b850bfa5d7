//! What `verify`, `index` and `inspect` know of a packed data set on the disk, whoever wrote it.

pub(crate) mod json;
pub(crate) mod layout;
pub(crate) mod members;

pub(crate) use json::{PackedJson, Problem, SubSample};
pub(crate) use layout::{DataSet, Layout, find_tars};
pub(crate) use members::{Member, members_at, members_of, read_member};
