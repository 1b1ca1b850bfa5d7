//! Opens the images that records name, and only below the allowed roots: folders, or prefixes of object stores.
//!
//! On Linux the kernel itself keeps a lookup beneath a root (`openat2` with `RESOLVE_BENEATH`), so that
//! a link that changes between a check and the opening cannot lead out. Where the kernel refuses (an
//! absolute link that stays inside, an old system), the resolved path is compared with the roots.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use packd_contracts::{ImageRef, Reason, Verdict};
use packd_storage::{Object, Stores, is_url, local_path};

use crate::error::SourceError;
use crate::loaded_images::LoadedImages;
use crate::open_image::{ImageError, OpenImage};

/// Which files an [`ImageStore`] may open.
#[derive(Debug, Clone, Default)]
pub struct ImageStoreOptions {
    /// Relative paths start here, a folder or a URL; without it, in the folder of the input file.
    pub image_root: Option<PathBuf>,
    /// Folders and URLs below which absolute paths are allowed, besides `image_root` and the input's folder.
    pub allow_root: Vec<PathBuf>,
    /// Follow symbolic links that lead out of the roots.
    pub follow_symlinks: bool,
}

/// Opens images; share it between threads by reference.
#[derive(Debug)]
pub struct ImageStore {
    roots: Vec<Root>,
    prefixes: Vec<Object>,
    /// For each input, the root that relative paths start from.
    start_of_source: Vec<Start>,
    follow_symlinks: bool,
}

/// A place in the list of roots, or in that of prefixes.
#[derive(Debug, Clone, Copy)]
enum Start {
    Root(usize),
    Prefix(usize),
}

/// Where an image lies.
enum Place<'a> {
    Below(&'a Root, PathBuf),
    Object(Object),
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    /// The path with every link resolved.
    real: PathBuf,
    handle: OwnedFd,
}

impl ImageStore {
    /// A store for images of records from the given inputs; `source_folders[i]` is the folder of input
    /// `i`. Relative paths start in `image_root`, or else in that folder.
    ///
    /// # Errors
    /// A root that cannot be opened.
    pub fn new(
        options: &ImageStoreOptions,
        source_folders: &[PathBuf],
        stores: &Arc<Stores>,
    ) -> Result<Self, SourceError> {
        let (mut roots, mut prefixes): (Vec<Root>, Vec<Object>) = (Vec::new(), Vec::new());
        let mut add = |path: &Path| -> Result<Start, SourceError> {
            let name = path.to_string_lossy();
            let Some(local) = local_path(&name) else {
                let prefix = stores.object(&name)?;
                let known = prefixes.iter().position(|known| known.url() == prefix.url());
                return Ok(Start::Prefix(known.unwrap_or_else(|| {
                    prefixes.push(prefix);
                    prefixes.len() - 1
                })));
            };
            if let Some(known) = roots.iter().position(|root| root.path == local) {
                return Ok(Start::Root(known));
            }
            roots.push(Root::open(&local)?);
            Ok(Start::Root(roots.len() - 1))
        };
        let start_of_source = source_folders
            .iter()
            .map(|folder| add(options.image_root.as_deref().unwrap_or(folder)))
            .collect::<Result<_, _>>()?;
        for path in options.allow_root.iter().chain(source_folders) {
            add(path)?;
        }
        Ok(Self { roots, prefixes, start_of_source, follow_symlinks: options.follow_symlinks })
    }

    /// Whether images may lie in object stores, so that opening one takes as long as a request.
    pub fn is_remote(&self) -> bool {
        !self.prefixes.is_empty()
    }

    /// Reads the images that lie in object stores, many at once; for those of folders nothing is done.
    pub fn load<'a>(&self, wanted: impl IntoIterator<Item = (&'a ImageRef, usize)>) -> LoadedImages {
        let mut objects: BTreeMap<(usize, String), Object> = BTreeMap::new();
        if self.is_remote() {
            for (image, source) in wanted {
                if let ImageRef::Path(name) = image
                    && let Ok(Place::Object(object)) = self.locate(name, source)
                {
                    objects.insert((source, name.clone()), object);
                }
            }
        }
        LoadedImages::load(objects.into_iter().collect())
    }

    /// Opens one image of a record of input `source`, as [`open`](Self::open) does, or takes it from those that
    /// were loaded.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_loaded(
        &self,
        image: &ImageRef,
        source: usize,
        loaded: &LoadedImages,
    ) -> Result<OpenImage, ImageError> {
        match image {
            ImageRef::Path(name) => match loaded.get(source, name) {
                Some(image) => Ok(image),
                None => self.open_path(name, source),
            },
            ImageRef::Inline(_) => self.open(image, source),
        }
    }

    /// Opens one image of a record of input `source`.
    ///
    /// # Errors
    /// A verdict (`image-missing`, `image-outside-root`, `image-scheme`, `image-unreadable`), or a system
    /// that cannot open more files or read them.
    pub fn open(&self, image: &ImageRef, source: usize) -> Result<OpenImage, ImageError> {
        match image {
            ImageRef::Inline(bytes) => Ok(OpenImage::Inline(bytes.clone())),
            ImageRef::Path(name) => self.open_path(name, source),
        }
    }

    fn open_path(&self, name: &str, source: usize) -> Result<OpenImage, ImageError> {
        let (root, relative) = match self.locate(name, source)? {
            Place::Below(root, relative) => (root, relative),
            Place::Object(object) => return OpenImage::open_object(object),
        };
        let file = self.open_beneath(root, &relative, name)?;
        let metadata = file.metadata().map_err(|error| ImageError::io(Path::new(name), error))?;
        if !metadata.is_file() {
            return Err(Verdict::new(Reason::ImageUnreadable, format!("{name}: not a file")).into());
        }
        let modified =
            metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        Ok(OpenImage::File {
            file,
            size: metadata.len(),
            modified: modified.map_or(0, |since| since.as_nanos() as u64),
            path: root.path.join(relative),
        })
    }

    /// The root that a name lies below, and the path from there.
    fn locate(&self, name: &str, source: usize) -> Result<Place<'_>, Verdict> {
        let object = |prefix: &Object, relative: &str| match prefix.join(relative) {
            Ok(Some(object)) if object.url() == prefix.url() => {
                Err(Verdict::new(Reason::ImageUnreadable, format!("{name}: not a file")))
            }
            Ok(Some(object)) if object.url().len() > LONGEST_URL => {
                Err(Verdict::new(Reason::ImageMissing, "the name is longer than any store allows"))
            }
            Ok(Some(object)) => Ok(Place::Object(object)),
            Ok(None) => Err(outside(name)),
            Err(error) => Err(Verdict::new(Reason::ImageMissing, error.to_string())),
        };
        if is_url(name) {
            let below =
                |prefix: &Object| Some(name.strip_prefix(prefix.url())?.strip_prefix('/')?.to_owned());
            let found = self.prefixes.iter().find_map(|prefix| below(prefix).map(|rest| (prefix, rest)));
            return match found {
                Some((prefix, relative)) => object(prefix, &relative),
                None if self.prefixes.iter().any(|prefix| scheme_of(prefix.url()) == scheme_of(name)) => {
                    Err(outside(name))
                }
                None => {
                    let detail = format!("{name}: to read it, add its prefix to `allow_root`");
                    Err(Verdict::new(Reason::ImageScheme, detail))
                }
            };
        }
        let path = match name.split_once("://") {
            // As `qwen_vl_utils` reads it: `%` is a letter like any other.
            None | Some(("file", _)) => local_path(name).unwrap_or_default(),
            Some((scheme, _))
                if scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+' || c == '-') =>
            {
                let detail = format!("{name}: `{scheme}://` is not supported; copy the image to a folder");
                return Err(Verdict::new(Reason::ImageScheme, detail));
            }
            Some(_) => PathBuf::from(name),
        };
        if path.is_relative() {
            return match self.start_of_source[source] {
                Start::Root(root) => Ok(Place::Below(&self.roots[root], path)),
                Start::Prefix(prefix) => object(&self.prefixes[prefix], name),
            };
        }
        let below = |root: &Root| {
            path.strip_prefix(&root.real).or_else(|_| path.strip_prefix(&root.path)).map(Path::to_owned)
        };
        let found = self.roots.iter().find_map(|root| below(root).ok().map(|relative| (root, relative)));
        found.map(|(root, relative)| Place::Below(root, relative)).ok_or_else(|| outside(name))
    }

    fn open_beneath(&self, root: &Root, relative: &Path, name: &str) -> Result<File, ImageError> {
        let failed = |error| ImageError::io(Path::new(name), error);
        if self.follow_symlinks {
            // Links may lead out, `..` in the record may not.
            if leaves(relative) {
                return Err(outside(name).into());
            }
            return open_without_waiting(&root.path.join(relative)).map_err(failed);
        }
        match open_in_kernel(root, relative) {
            Ok(file) => return Ok(file),
            Err(Refused::System(error)) => return Err(failed(error)),
            Err(Refused::MayBeOutside | Refused::Unsupported) => {}
        }
        let real = root.path.join(relative).canonicalize().map_err(failed)?;
        let below = |root: &'_ Root| real.strip_prefix(&root.real).ok().map(Path::to_owned);
        let found = self.roots.iter().find_map(|root| below(root).map(|relative| (root, relative)));
        let (root, relative) = found.ok_or_else(|| outside(name))?;
        // A resolved path has no links: one that leads out now was put there since.
        match open_in_kernel(root, &relative) {
            Ok(file) => Ok(file),
            Err(Refused::System(error)) => Err(failed(error)),
            Err(Refused::MayBeOutside) => Err(outside(name).into()),
            Err(Refused::Unsupported) => open_without_waiting(&real).map_err(failed),
        }
    }
}

impl Root {
    fn open(path: &Path) -> Result<Self, SourceError> {
        let fail = |error| SourceError::io(path, error);
        let real = path.canonicalize().map_err(fail)?;
        let handle = File::open(path).map_err(fail)?.into();
        Ok(Self { path: path.to_owned(), real, handle })
    }
}

/// A named pipe in the place of an image must not hang the run.
fn open_without_waiting(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Keys have 1,024 bytes at most, and a bucket's name comes before them.
const LONGEST_URL: usize = 1100;

fn scheme_of(url: &str) -> Option<&str> {
    url.split_once("://").map(|(scheme, _)| scheme)
}

fn outside(name: &str) -> Verdict {
    Verdict::new(
        Reason::ImageOutsideRoot,
        format!("{name}: outside the allowed folders; add its folder to `allow_root`"),
    )
}

fn leaves(relative: &Path) -> bool {
    let mut depth = 0_i64;
    relative.components().any(|component| {
        match component {
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::RootDir | Component::Prefix(_) => depth = -1,
            Component::CurDir => {}
        }
        depth < 0
    })
}

enum Refused {
    /// The path may lead out.
    MayBeOutside,
    /// This system cannot tell.
    Unsupported,
    System(std::io::Error),
}

#[cfg(target_os = "linux")]
fn open_in_kernel(root: &Root, relative: &Path) -> Result<File, Refused> {
    use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
    use rustix::io::Errno;
    // Non-blocking: a named pipe in the place of an image must not hang the run.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match openat2(
        &root.handle,
        relative,
        flags,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
    ) {
        Ok(handle) => Ok(File::from(handle)),
        Err(Errno::XDEV | Errno::AGAIN) => Err(Refused::MayBeOutside),
        Err(Errno::NOSYS | Errno::PERM) => Err(Refused::Unsupported),
        Err(error) => Err(Refused::System(error.into())),
    }
}

#[cfg(not(target_os = "linux"))]
fn open_in_kernel(_: &Root, _: &Path) -> Result<File, Refused> {
    Err(Refused::Unsupported)
}
