//! The `packd` command.
fn main() {}
