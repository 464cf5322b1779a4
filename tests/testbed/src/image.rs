//! Images of programs of this machine, as OCI archives: one layer with the shared libraries that a program loads, one with the
//! program, no shell and no package. A Node of the testbed has no registry to pull from and imports them; `make images` makes those
//! that people pull.

mod archive;
mod program;
mod release;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

pub use release::{Growth, Release, Sizes};

use archive::{Archive, CONFIG, Content, INDEX, MANIFEST};

/// By this annotation of an archive's index containerd names what it imports.
const NAME: &str = "io.containerd.image.name";
/// And by this one everybody else, who takes the tag for the name.
const TAG: &str = "org.opencontainers.image.ref.name";
/// Who programs run as where nobody says otherwise, by number: what says that nobody may be root cannot look names up.
const USER: &str = "65532:65532";

/// What Pods find under some names of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    names: Vec<String>,
    program: PathBuf,
    args: Vec<String>,
    release: Option<Release>,
    compressed: bool,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// What a registry knows the image by: `sha256:…`.
    pub digest: String,
    /// Bytes of all files in it.
    pub size: u64,
}

impl Image {
    /// The image `name` (`registry.example.com/operator:1.0`: host and tag are part of it) of a program, which is its entrypoint
    /// and lies at the root of its file system by its own name.
    pub fn new(name: &str, program: impl Into<PathBuf>) -> Self {
        Self {
            names: vec![name.to_owned()],
            program: program.into(),
            args: Vec::new(),
            release: None,
            compressed: false,
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

    /// As people install it: with CA certificates and labels, and run by nobody in particular.
    pub fn released(mut self, release: Release) -> Self {
        self.release = Some(release);
        self
    }

    /// With layers as a registry keeps them, so that its digest stays what it is when it is pushed.
    pub fn compressed(mut self) -> Self {
        self.compressed = true;
        self
    }

    /// Writes the archive. Debug information stays behind: a program of a test build is mostly that.
    pub fn write(&self, archive: &Path) -> Result<Written> {
        self.build(archive)
            .with_context(|| format!("making an image of {}", self.program.display()))
    }

    fn build(&self, archive: &Path) -> Result<Written> {
        let name = self.program.file_name().context("a program has a file name")?;
        let program = Content {
            path: PathBuf::from(name),
            mode: 0o755,
            bytes: program::stripped(&self.program)?,
        };
        let mut around = program::libraries(&self.program)?;
        if self.release.is_some() {
            around.push(program::certificates()?);
        }
        let parts = [around, vec![program]];
        let size = parts.iter().flatten().map(|file| file.bytes.len() as u64).sum();
        let mut archive = Archive::new(archive)?;
        let mut layers = Vec::new();
        let mut digests = Vec::new();
        for files in &parts {
            let (layer, digest) = archive.add_layer(files, self.compressed)?;
            layers.push(layer);
            digests.push(digest);
        }
        let config = self.config(&name.to_string_lossy(), &digests)?;
        let config = archive.add(CONFIG, config.to_string().as_bytes())?;
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
        let manifest = archive.add(MANIFEST, manifest.to_string().as_bytes())?;
        let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
        archive.finish(&self.index(&manifest).to_string())?;
        Ok(Written { digest, size })
    }

    fn config(&self, name: &str, digests: &[String]) -> Result<Value> {
        let mut config = json!({
            "architecture": architecture(), "os": "linux",
            "config": {"Entrypoint": [format!("/{name}")], "Cmd": self.args, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": digests},
        });
        if let Some(release) = &self.release {
            let created = release.created()?;
            config["config"]["User"] = json!(USER);
            config["config"]["Labels"] = json!(release.labels(name)?);
            config["created"] = json!(created);
            let layers = digests
                .iter()
                .map(|_| json!({"created": created, "created_by": "make images"}));
            config["history"] = layers.collect();
        }
        Ok(config)
    }

    fn index(&self, manifest: &Value) -> Value {
        let named = self.names.iter().map(|name| {
            let (_, tag) = name.rsplit_once(':').unwrap_or((name, "latest"));
            let mut manifest = manifest.clone();
            manifest["annotations"] = json!({NAME: name, TAG: tag});
            manifest
        });
        json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": named.collect::<Vec<_>>()})
    }
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
    use std::fs::{self, File};
    use std::io::Read;

    use super::*;

    /// What an archive leads to, by the first name of its image and by the last.
    struct Opened {
        index: Value,
        config: Value,
        layers: Vec<BTreeMap<String, Vec<u8>>>,
        digest: String,
    }

    fn read(tar: impl Read) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        for entry in tar::Archive::new(tar).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.insert(path, content);
        }
        found
    }

    fn open(archive: &Path) -> Opened {
        let files = read(File::open(archive).unwrap());
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
            let blob = &files[&format!("blobs/{digest}")];
            assert_eq!(descriptor["size"], blob.len());
            blob.clone()
        };
        let parse = |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).unwrap() };
        let index = parse(&files["index.json"]);
        let last = index["manifests"].as_array().unwrap().last().unwrap();
        let manifest = parse(&blob(last));
        let layers = manifest["layers"].as_array().unwrap().iter().map(|layer| {
            let bytes = blob(layer);
            if layer["mediaType"].as_str().unwrap().ends_with("+gzip") {
                read(flate2::read::GzDecoder::new(&bytes[..]))
            } else {
                read(&bytes[..])
            }
        });
        Opened {
            layers: layers.collect(),
            config: parse(&blob(&manifest["config"])),
            digest: last["digest"].as_str().unwrap().to_owned(),
            index,
        }
    }

    #[test]
    fn an_archive_leads_from_each_name_to_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("a.tar");
        let image = Image::new("example.com/sh:1", "/bin/sh")
            .and("example.com/sh:2")
            .args(&["-c", "true"]);
        let written = image.write(&archive).unwrap();
        let opened = open(&archive);
        assert_eq!(written.digest, opened.digest);
        let manifests = &opened.index["manifests"];
        let names: Vec<_> = (0..2).map(|at| &manifests[at]["annotations"][NAME]).collect();
        assert_eq!(names, ["example.com/sh:1", "example.com/sh:2"]);
        assert_eq!(manifests[1]["annotations"][TAG], "2");
        assert_eq!(opened.config["config"]["Entrypoint"], json!(["/sh"]));
        assert!(opened.layers[1]["sh"].starts_with(b"\x7fELF"));
        let size: usize = opened.layers.iter().flatten().map(|(_, content)| content.len()).sum();
        assert_eq!(written.size, size as u64);
    }

    #[test]
    fn a_release_says_what_it_is_and_is_the_same_again() {
        let folder = tempfile::tempdir().unwrap();
        let release = Release {
            version: "1.2.3".to_owned(),
            revision: "abc".to_owned(),
            source: Some("https://example.com/source".to_owned()),
            created: 1_700_000_000,
        };
        let write = |name: &str, release: &Release| {
            let archive = folder.path().join(name);
            let image = Image::new("example.com/sh:1", "/bin/sh").released(release.clone());
            (image.compressed().write(&archive).unwrap(), archive)
        };
        let (first, archive) = write("a.tar", &release);
        let (again, same) = write("b.tar", &release);
        assert_eq!(first, again);
        assert!(
            fs::read(&archive).unwrap() == fs::read(same).unwrap(),
            "the same files, another archive"
        );
        let other = Release {
            revision: "abd".to_owned(),
            ..release
        };
        assert_ne!(write("c.tar", &other).0.digest, first.digest);

        let opened = open(&archive);
        let config = &opened.config["config"];
        assert_eq!(config["User"], USER);
        let label = |name: &str| config["Labels"][format!("org.opencontainers.image.{name}")].clone();
        let said = ["title", "version", "revision", "source", "licenses", "created"].map(label);
        let source = "https://example.com/source";
        assert_eq!(
            said,
            ["sh", "1.2.3", "abc", source, "Apache-2.0", "2023-11-14T22:13:20Z"]
        );
        assert_eq!(opened.config["created"], "2023-11-14T22:13:20Z");
        assert!(opened.layers[0].contains_key("etc/ssl/certs/ca-certificates.crt"));
        // The libraries and whom to trust; the program: and no other file.
        let allowed =
            |path: &str| path.contains("lib") || path.starts_with("etc/ssl/") || path == "sh" || path == "tmp/";
        let more: Vec<_> = opened
            .layers
            .iter()
            .flat_map(BTreeMap::keys)
            .filter(|path| !allowed(path))
            .collect();
        assert!(more.is_empty(), "{more:?}");
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
