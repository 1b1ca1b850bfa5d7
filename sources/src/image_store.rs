//! Opens the images that records name, and only below the allowed roots.
//!
//! On Linux the kernel itself keeps a lookup beneath a root (`openat2` with `RESOLVE_BENEATH`), so that
//! a link that changes between a check and the opening cannot lead out. Where the kernel refuses (an
//! absolute link that stays inside, an old system), the resolved path is compared with the roots.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use packd_contracts::{ImageRef, Reason, Verdict};

use crate::error::SourceError;
use crate::open_image::{ImageError, OpenImage};

/// Which files an [`ImageStore`] may open.
#[derive(Debug, Clone, Default)]
pub struct ImageStoreOptions {
    /// Relative paths start here; without it, in the folder of the input file.
    pub image_root: Option<PathBuf>,
    /// Folders below which absolute paths are allowed, besides `image_root` and the input's folder.
    pub allow_root: Vec<PathBuf>,
    /// Follow symbolic links that lead out of the roots.
    pub follow_symlinks: bool,
}

/// Opens images; share it between threads by reference.
#[derive(Debug)]
pub struct ImageStore {
    roots: Vec<Root>,
    /// For each input, the root that relative paths start from.
    start_of_source: Vec<usize>,
    follow_symlinks: bool,
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
    pub fn new(options: &ImageStoreOptions, source_folders: &[PathBuf]) -> Result<Self, SourceError> {
        let mut roots: Vec<Root> = Vec::new();
        let mut add = |path: &Path| -> Result<usize, SourceError> {
            if let Some(known) = roots.iter().position(|root| root.path == path) {
                return Ok(known);
            }
            roots.push(Root::open(path)?);
            Ok(roots.len() - 1)
        };
        let start_of_source = source_folders
            .iter()
            .map(|folder| add(options.image_root.as_deref().unwrap_or(folder)))
            .collect::<Result<_, _>>()?;
        for path in options.allow_root.iter().chain(source_folders) {
            add(path)?;
        }
        Ok(Self { roots, start_of_source, follow_symlinks: options.follow_symlinks })
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
        let (root, relative) = self.locate(name, source)?;
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
    fn locate(&self, name: &str, source: usize) -> Result<(&Root, PathBuf), Verdict> {
        let name = match name.split_once("://") {
            None => name,
            // As `qwen_vl_utils` reads it: `%` is a letter like any other.
            Some(("file", path)) => {
                path.strip_prefix("localhost").filter(|path| path.starts_with('/')).unwrap_or(path)
            }
            Some((scheme, _))
                if scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+' || c == '-') =>
            {
                let detail = format!("{name}: `{scheme}://` is not supported; copy the image to a folder");
                return Err(Verdict::new(Reason::ImageScheme, detail));
            }
            Some(_) => name,
        };
        let path = Path::new(name);
        if path.is_relative() {
            return Ok((&self.roots[self.start_of_source[source]], path.to_owned()));
        }
        let below = |root: &Root| {
            path.strip_prefix(&root.real).or_else(|_| path.strip_prefix(&root.path)).map(Path::to_owned)
        };
        let found = self.roots.iter().find_map(|root| below(root).ok().map(|relative| (root, relative)));
        found.ok_or_else(|| outside(name))
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
