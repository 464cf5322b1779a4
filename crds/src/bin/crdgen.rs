//! Prints the CustomResourceDefinitions that `crds/manifests/` keeps; with `--write` it writes them there.
//!
//! `make bless` runs it after a change of the API types; a test compares.

use std::io::Write;
use std::path::Path;
use std::{env, fs, io};

use portolan_crds::definitions::manifests;

fn main() -> io::Result<()> {
    let write = env::args().any(|argument| argument == "--write");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    for (file, text) in manifests() {
        if write {
            fs::write(folder.join(file), text)?;
        } else {
            io::stdout().write_all(text.as_bytes())?;
        }
    }
    Ok(())
}
