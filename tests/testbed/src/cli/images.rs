//! `images`: what `make images` writes of programs that are built. People install these; a Node of the testbed has its own of
//! whatever a test has built.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args as Flags;
use portolan_testbed::{Image, Release, Sizes};

#[derive(Clone, Debug, Flags)]
pub(super) struct ImagesFlags {
    /// The programs: each is the entrypoint of an image of its own name
    #[arg(required = true)]
    programs: Vec<PathBuf>,
    /// Folder of the archives
    #[arg(long)]
    out: PathBuf,
    /// What their names begin with
    #[arg(long, default_value = "localhost")]
    prefix: String,
    /// Their tag, and the version that their labels say
    #[arg(long = "tag", default_value = env!("CARGO_PKG_VERSION"))]
    version: String,
    /// The commit that they are of
    #[arg(long)]
    revision: String,
    /// Where their source is, a URL
    #[arg(long)]
    source: Option<String>,
    /// When the commit was made, in seconds since 1970
    #[arg(long, env = "SOURCE_DATE_EPOCH")]
    created: i64,
    /// File with the sizes that somebody has looked at
    #[arg(long)]
    sizes: PathBuf,
}

/// Writes all of them, then fails if one has grown too much.
pub(super) fn write(flags: &ImagesFlags) -> Result<()> {
    let sizes = std::fs::read_to_string(&flags.sizes).with_context(|| format!("reading {}", flags.sizes.display()))?;
    let sizes = Sizes::parse(&sizes).with_context(|| flags.sizes.display().to_string())?;
    std::fs::create_dir_all(&flags.out).with_context(|| format!("creating {}", flags.out.display()))?;
    let release = Release {
        version: flags.version.clone(),
        revision: flags.revision.clone(),
        source: flags.source.clone().filter(|source| !source.is_empty()),
        created: flags.created,
    };
    let mut grown = Vec::new();
    for program in &flags.programs {
        let name = program
            .file_name()
            .context("a program has a file name")?
            .to_string_lossy();
        let archive = flags.out.join(format!("{name}.tar"));
        let image = Image::new(&format!("{}/{name}:{}", flags.prefix, flags.version), program);
        let written = image.released(release.clone()).compressed().write(&archive)?;
        super::say(&format!(
            "{name} {} {} bytes {}",
            written.digest,
            written.size,
            archive.display()
        ))?;
        grown.extend(sizes.check(&name, written.size).err().map(|growth| growth.to_string()));
    }
    ensure!(grown.is_empty(), "{}: {}", flags.sizes.display(), grown.join("; "));
    Ok(())
}
