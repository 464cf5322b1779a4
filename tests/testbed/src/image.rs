//! Images of programs of this machine, as OCI archives: one layer with the shared libraries that a program loads, one with the
//! program, nothing else. A Node of the testbed has no registry to pull from.
//!
//! The format: <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, Header};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// By this annotation of an archive's index containerd names what it imports.
const NAME: &str = "io.containerd.image.name";

/// What Pods find under some names of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    names: Vec<String>,
    program: PathBuf,
    args: Vec<String>,
}

impl Image {
    /// The image `name` (`registry.example.com/operator:1.0`: host and tag are part of it) of a program, which is its entrypoint
    /// and lies at the root of its file system by its own name.
    pub fn new(name: &str, program: impl Into<PathBuf>) -> Self {
        Self {
            names: vec![name.to_owned()],
            program: program.into(),
            args: Vec::new(),
        }
    }

    /// The same under one more name.
    pub fn and(mut self, name: &str) -> Self {
        self.names.push(name.to_owned());
        self
    }

    /// With these arguments, unless a container has its own.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
        self
    }

    /// Writes the archive. Debug information stays behind: a program of a test build is mostly that.
    pub(crate) fn write(&self, archive: &Path) -> Result<()> {
        let build = || -> Result<()> {
            let name = self.program.file_name().context("a program has a file name")?;
            let stripped = tempfile::NamedTempFile::new()?;
            let program = strip(&self.program, stripped.path())?;
            let libraries = layer(&libraries(&self.program)?)?;
            let program = layer(&[(PathBuf::from(name), program)])?;
            let mut blobs = Blobs::new(archive)?;
            let layers = [blobs.add(LAYER, &libraries)?, blobs.add(LAYER, &program)?];
            let digests: Vec<_> = layers.iter().map(|layer| layer["digest"].clone()).collect();
            let entrypoint = format!("/{}", name.display());
            let config = json!({
                "architecture": architecture(), "os": "linux",
                "config": {"Entrypoint": [entrypoint], "Cmd": self.args, "WorkingDir": "/"},
                "rootfs": {"type": "layers", "diff_ids": digests},
            });
            let config = blobs.add(CONFIG, config.to_string().as_bytes())?;
            let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
            let manifest = blobs.add(MANIFEST, manifest.to_string().as_bytes())?;
            let named = self.names.iter().map(|name| {
                let mut manifest = manifest.clone();
                manifest["annotations"] = json!({NAME: name});
                manifest
            });
            let index =
                json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": named.collect::<Vec<_>>()}).to_string();
            blobs.finish(&index)
        };
        build().with_context(|| format!("making an image of {}", self.program.display()))
    }
}

/// An archive that blobs are added to.
struct Blobs {
    tar: Builder<File>,
    has: BTreeSet<String>,
}

impl Blobs {
    fn new(archive: &Path) -> Result<Self> {
        let tar = Builder::new(File::create(archive)?);
        let has = BTreeSet::new();
        Ok(Self { tar, has })
    }

    /// Adds what is not there yet; returns its descriptor.
    fn add(&mut self, media_type: &str, blob: &[u8]) -> Result<Value> {
        let digest = Sha256::digest(blob).iter().fold(String::new(), |mut hex, byte| {
            // Writing to a String never fails.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        if self.has.insert(digest.clone()) {
            append(&mut self.tar, Path::new(&format!("blobs/sha256/{digest}")), blob, 0o644)?;
        }
        Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": blob.len()}))
    }

    fn finish(mut self, index: &str) -> Result<()> {
        append(&mut self.tar, Path::new("index.json"), index.as_bytes(), 0o644)?;
        let layout = json!({"imageLayoutVersion": "1.0.0"}).to_string();
        append(&mut self.tar, Path::new("oci-layout"), layout.as_bytes(), 0o644)?;
        self.tar.into_inner()?.flush()?;
        Ok(())
    }
}

/// A layer of files, each by its path in the image and where its content is.
fn layer(files: &[(PathBuf, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    // Where anybody may write, as in any image.
    let mut folder = header(0, 0o1777);
    folder.set_entry_type(tar::EntryType::Directory);
    tar.append_data(&mut folder, "tmp/", std::io::empty())?;
    for (path, content) in files {
        append(&mut tar, path, content, 0o755)?;
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

/// The shared libraries that a program loads and the program that loads them, at the paths where ldd(1) finds them.
fn libraries(program: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let output = Command::new("ldd").arg(program).output().context("running ldd")?;
    let said = String::from_utf8_lossy(&output.stdout);
    // "libc.so.6 => /lib/libc.so.6 (0x…)", "/lib64/ld-linux.so.2 (0x…)"; of a program without any it says so, and fails.
    let paths = said.lines().filter_map(|line| {
        let path = line.split_once("=> ").map_or(line.trim(), |(_, path)| path);
        path.starts_with('/').then(|| path.split(' ').next().unwrap_or(path))
    });
    paths
        .map(|path| {
            let content = fs::read(path).with_context(|| format!("reading {path}"))?;
            Ok((PathBuf::from(path.trim_start_matches('/')), content))
        })
        .collect()
}

/// The program without debug information, by way of a file.
fn strip(program: &Path, into: &Path) -> Result<Vec<u8>> {
    let output = Command::new("strip").arg("-o").arg(into).arg(program).output();
    let output = output.context("running strip (package binutils)")?;
    ensure!(
        output.status.success(),
        "strip: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(fs::read(into)?)
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    fn read(archive: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut tar = tar::Archive::new(File::open(archive).unwrap());
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.insert(path, content);
        }
        found
    }

    #[test]
    fn an_archive_leads_from_each_name_to_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let (archive, again) = (folder.path().join("a.tar"), folder.path().join("b.tar"));
        let image = Image::new("example.com/sh:1", "/bin/sh")
            .and("example.com/sh:2")
            .args(&["-c", "true"]);
        image.write(&archive).unwrap();
        image.write(&again).unwrap();
        assert!(
            fs::read(&archive).unwrap() == fs::read(&again).unwrap(),
            "the same files, another archive"
        );

        let files = read(&archive);
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
            let blob = &files[&format!("blobs/{digest}")];
            assert_eq!(descriptor["size"], blob.len());
            blob.clone()
        };
        let parse = |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).unwrap() };
        let index = parse(&files["index.json"]);
        let names: Vec<_> = (0..2).map(|at| &index["manifests"][at]["annotations"][NAME]).collect();
        assert_eq!(names, ["example.com/sh:1", "example.com/sh:2"]);
        let manifest = parse(&blob(&index["manifests"][1]));
        let config = parse(&blob(&manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/sh"]));
        let program = folder.path().join("program.tar");
        fs::write(&program, blob(&manifest["layers"][1])).unwrap();
        assert!(read(&program)["sh"].starts_with(b"\x7fELF"));
    }

    #[test]
    fn what_is_no_program_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Image::new("a:1", "/etc/hostname")
            .write(&folder.path().join("a.tar"))
            .unwrap_err();
        assert!(format!("{error:#}").contains("/etc/hostname"), "{error:#}");
    }
}
