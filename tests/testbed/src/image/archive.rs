//! OCI archives: blobs by their digests, and what leads to them. The format:
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use flate2::GzBuilder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, Header};

pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const COMPRESSED_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A file of an image: its path there, its mode, what it holds.
pub(super) struct Content {
    pub(super) path: PathBuf,
    pub(super) mode: u32,
    pub(super) bytes: Vec<u8>,
}

/// An archive that blobs are added to.
pub(super) struct Archive {
    tar: Builder<File>,
    has: BTreeSet<String>,
}

impl Archive {
    pub(super) fn new(path: &Path) -> Result<Self> {
        let tar = Builder::new(File::create(path)?);
        let has = BTreeSet::new();
        Ok(Self { tar, has })
    }

    /// Adds what is not there yet; returns its descriptor.
    pub(super) fn add(&mut self, media_type: &str, blob: &[u8]) -> Result<Value> {
        let digest = digest(blob);
        if self.has.insert(digest.clone()) {
            append(&mut self.tar, Path::new(&format!("blobs/sha256/{digest}")), blob, 0o644)?;
        }
        Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": blob.len()}))
    }

    /// Adds a layer of these files; returns its descriptor, and the digest of what it is before it is compressed.
    pub(super) fn add_layer(&mut self, files: &[Content], compressed: bool) -> Result<(Value, String)> {
        let layer = layer(files)?;
        let whole = format!("sha256:{}", digest(&layer));
        let descriptor = if compressed {
            let mut gzip = GzBuilder::new().write(Vec::new(), flate2::Compression::default());
            gzip.write_all(&layer)?;
            self.add(COMPRESSED_LAYER, &gzip.finish()?)?
        } else {
            self.add(LAYER, &layer)?
        };
        Ok((descriptor, whole))
    }

    pub(super) fn finish(mut self, index: &str) -> Result<()> {
        append(&mut self.tar, Path::new("index.json"), index.as_bytes(), 0o644)?;
        let layout = json!({"imageLayoutVersion": "1.0.0"}).to_string();
        append(&mut self.tar, Path::new("oci-layout"), layout.as_bytes(), 0o644)?;
        self.tar.into_inner()?.flush()?;
        Ok(())
    }
}

fn digest(blob: &[u8]) -> String {
    Sha256::digest(blob).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String never fails.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn layer(files: &[Content]) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    // Where anybody may write, as in any image.
    let mut folder = header(0, 0o1777);
    folder.set_entry_type(tar::EntryType::Directory);
    tar.append_data(&mut folder, "tmp/", std::io::empty())?;
    for file in files {
        append(&mut tar, &file.path, &file.bytes, file.mode)?;
    }
    Ok(tar.into_inner()?)
}

fn append<W: Write>(tar: &mut Builder<W>, path: &Path, content: &[u8], mode: u32) -> Result<()> {
    tar.append_data(&mut header(content.len() as u64, mode), path, content)?;
    Ok(())
}

/// Without a time and an owner: the same files make the same archive.
fn header(size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(size);
    header.set_mode(mode);
    header
}
