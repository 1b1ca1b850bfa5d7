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

/// An image that was opened for reading.
#[derive(Debug)]
pub enum OpenImage {
    /// A file, positioned at its start.
    File {
        /// The open handle.
        file: File,
        /// Its size in bytes when it was opened.
        size: u64,
        /// When it was last changed, in nanoseconds since 1970.
        modified: u64,
        /// The path that was opened, for messages.
        path: PathBuf,
    },
    /// Bytes that stood in the record itself.
    Inline(Vec<u8>),
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
    /// A verdict: `image-missing`, `image-outside-root`, `image-scheme` or `image-unreadable`.
    pub fn open(&self, image: &ImageRef, source: usize) -> Result<OpenImage, Verdict> {
        match image {
            ImageRef::Inline(bytes) => Ok(OpenImage::Inline(bytes.clone())),
            ImageRef::Path(name) => self.open_path(name, source),
        }
    }

    fn open_path(&self, name: &str, source: usize) -> Result<OpenImage, Verdict> {
        let (root, relative) = self.locate(name, source)?;
        let file = self.open_beneath(root, &relative, name)?;
        let unreadable = |error| Verdict::new(Reason::ImageUnreadable, format!("{name}: {error}"));
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(Verdict::new(Reason::ImageUnreadable, format!("{name}: not a file")));
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
            Some(("file", path)) => path,
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

    fn open_beneath(&self, root: &Root, relative: &Path, name: &str) -> Result<File, Verdict> {
        let verdict = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                Verdict::new(Reason::ImageMissing, format!("{name}: no such file"))
            }
            _ => Verdict::new(Reason::ImageUnreadable, format!("{name}: {error}")),
        };
        if self.follow_symlinks {
            // Links may lead out, `..` in the record may not.
            if leaves(relative) {
                return Err(outside(name));
            }
            return open_without_waiting(&root.path.join(relative)).map_err(verdict);
        }
        match open_in_kernel(root, relative) {
            Ok(file) => Ok(file),
            Err(Refused::System(error)) => Err(verdict(error)),
            Err(Refused::MayBeOutside) => {
                let real = root.path.join(relative).canonicalize().map_err(verdict)?;
                if self.roots.iter().any(|root| real.starts_with(&root.real)) {
                    open_without_waiting(&real).map_err(verdict)
                } else {
                    Err(outside(name))
                }
            }
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
    /// The path may lead out, or this system cannot tell.
    MayBeOutside,
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
        Err(Errno::XDEV | Errno::NOSYS | Errno::AGAIN | Errno::PERM) => Err(Refused::MayBeOutside),
        Err(error) => Err(Refused::System(error.into())),
    }
}

#[cfg(not(target_os = "linux"))]
fn open_in_kernel(_: &Root, _: &Path) -> Result<File, Refused> {
    Err(Refused::MayBeOutside)
}
