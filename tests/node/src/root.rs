//! What a container sees as its file system: the system folders of this machine, read-only, the program of its image, a few
//! files of its own below /etc, and its volumes. Nothing of what else this machine holds.
//!
//! Here it is only listed; `scripts/enter.sh` makes it, in a mount namespace of the container's own: it is memory, and gone
//! with the container. Not isolation against hostile programs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod;

use crate::field::Place;
use crate::image::Image;

/// Folders of the system, where it has them: programs, libraries, the stores of distributions that keep them elsewhere.
const SYSTEM: [&str; 9] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "nix", "gnu"];
/// Devices that every container has.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// What programs read below /etc, where it is there: who is who, libraries, trust, time.
const ETC: [&str; 12] = [
    "passwd",
    "group",
    "nsswitch.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl",
    "pki",
    "ca-certificates",
    "localtime",
    "services",
];
/// Where the programs of images are.
const PROGRAMS: &str = "/image";
/// `PATH` of containers that set none.
pub(crate) const PATH: &str = "/image:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Something mounted into a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// A file or a folder of this machine.
    pub(crate) source: PathBuf,
    /// Absolute path in the container.
    pub(crate) target: String,
    pub(crate) read_only: bool,
}

/// Path of the image's program in the container.
pub(crate) fn program(image: &Image) -> String {
    format!("{PROGRAMS}/{}", file_name(image))
}

/// The list that `scripts/enter.sh` reads: kind, target, source or mode, set apart by tabs; each line stands on those before.
/// Containers in the network of this machine find names as it does.
pub(crate) fn list(image: &Image, mounts: &[Mount], resolves: bool) -> Result<String> {
    let mut lines = String::new();
    let mut line = |kind: &str, target: &str, what: &str| {
        let _ = writeln!(lines, "{kind}\t{target}\t{what}");
    };
    for name in SYSTEM {
        let path = Path::new("/").join(name);
        match std::fs::read_link(&path) {
            // Without the slash it would lead out of the new root while that is made.
            Ok(link) => line("link", &format!("/{name}"), &relative(&link)),
            Err(_) if path.is_dir() => line("ro", &format!("/{name}"), &path.display().to_string()),
            Err(_) => {}
        }
    }
    for (kind, target, what) in [
        ("dir", "/dev", "0755"),
        ("dir", "/dev/shm", "1777"),
        ("link", "/dev/fd", "/proc/self/fd"),
        ("link", "/dev/stdin", "/proc/self/fd/0"),
        ("link", "/dev/stdout", "/proc/self/fd/1"),
        ("link", "/dev/stderr", "/proc/self/fd/2"),
        ("proc", "/proc", "-"),
        ("ro", "/sys", "/sys"),
        ("dir", "/etc", "0755"),
        ("dir", "/root", "0700"),
        ("dir", "/run", "0755"),
        ("dir", "/tmp", "1777"),
        ("dir", "/var", "0755"),
        ("dir", "/var/tmp", "1777"),
        ("link", "/var/run", "../run"),
    ] {
        line(kind, target, what);
    }
    for name in DEVICES {
        line("rw", &format!("/dev/{name}"), &format!("/dev/{name}"));
    }
    for name in ETC.into_iter().chain(resolves.then_some("resolv.conf")) {
        let path = Path::new("/etc").join(name);
        if path.exists() {
            line("ro", &format!("/etc/{name}"), &path.display().to_string());
        }
    }
    line("ro", &program(image), &image.program.display().to_string());
    let name = file_name(image);
    // Pods name the program of their image as it stands there, which is often the root.
    if !SYSTEM.contains(&name.as_str()) {
        line("link", &format!("/{name}"), &format!("image/{name}"));
    }
    for mount in in_order(mounts)? {
        let kind = if mount.read_only { "ro" } else { "rw" };
        line(kind, &mount.target, &mount.source.display().to_string());
    }
    Ok(lines)
}

/// Files below /etc that are a container's own: name and text.
pub(crate) fn etc(pod: &Pod, place: &Place) -> [(&'static str, String); 2] {
    let name = host_name(pod);
    let mut hosts = format!("127.0.0.1\tlocalhost\n::1\tlocalhost\n{}\t{name}\n", place.pod_ip);
    let aliases = pod.spec.iter().flat_map(|spec| spec.host_aliases.iter().flatten());
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        let _ = writeln!(hosts, "{}\t{names}", alias.ip);
    }
    [("hosts", hosts), ("hostname", format!("{name}\n"))]
}

/// What the Pod's programs call their machine.
pub(crate) fn host_name(pod: &Pod) -> String {
    let wanted = pod.spec.as_ref().and_then(|spec| spec.hostname.clone());
    wanted.or_else(|| pod.metadata.name.clone()).unwrap_or_default()
}

/// What is mounted below another comes after it.
fn in_order(mounts: &[Mount]) -> Result<Vec<&Mount>> {
    let mut targets = BTreeSet::new();
    for Mount { source, target, .. } in mounts {
        let is_plain = |text: &str| !text.contains(['\t', '\n']);
        if !target.starts_with('/') || target.split('/').any(|part| part == "..") || !is_plain(target) {
            bail!("cannot mount at {target:?}: write an absolute path without dots, tabs and line breaks");
        }
        if !is_plain(&source.display().to_string()) {
            bail!("cannot mount {}: tabs or line breaks in its path", source.display());
        }
        if !targets.insert(target) {
            bail!("{target} is mounted twice");
        }
    }
    let mut mounts: Vec<_> = mounts.iter().collect();
    mounts.sort_by_key(|mount| Path::new(&mount.target).components().count());
    Ok(mounts)
}

fn file_name(image: &Image) -> String {
    image
        .program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn relative(link: &Path) -> String {
    link.strip_prefix("/").unwrap_or(link).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(target: &str) -> Mount {
        Mount {
            source: "/v".into(),
            target: target.to_owned(),
            read_only: false,
        }
    }

    fn image() -> Image {
        Image {
            program: "/target/op".into(),
            args: Vec::new(),
        }
    }

    #[test]
    fn the_program_is_where_its_container_looks() {
        let list = list(&image(), &[], false).unwrap();
        assert!(list.contains("ro\t/image/op\t/target/op\n"), "{list}");
        assert!(list.contains("link\t/op\timage/op\n"), "{list}");
        assert!(!list.contains("\t/etc\t/etc"), "{list}");
    }

    #[test]
    fn what_lies_below_is_mounted_after() {
        let list = list(&image(), &[mount("/a/b/c"), mount("/a"), mount("/a/b")], false).unwrap();
        let ours: Vec<_> = list.lines().filter(|line| line.ends_with("\t/v")).collect();
        assert_eq!(ours, ["rw\t/a\t/v", "rw\t/a/b\t/v", "rw\t/a/b/c\t/v"]);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for bad in ["a", "/a/../../etc", "/a\nro\t/etc"] {
            assert!(list(&image(), &[mount(bad)], false).is_err(), "{bad}");
        }
        assert!(list(&image(), &[mount("/a"), mount("/a")], false).is_err());
    }
}
