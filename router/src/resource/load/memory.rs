//! Memory in use, and how much there may be: of the container by its cgroup (v2, else v1), of the process by a flag.
//!
//! Of a cgroup what counts is what the kernel cannot simply take back, as for the kubelet: its memory without inactive pages of
//! files. Read by a task of the control runtime, never by a request.

use std::fs;
use std::path::{Path, PathBuf};

/// More than any machine has: how v1 says that there is no limit.
const NO_LIMIT: u64 = 1 << 60;

/// Where to look.
#[derive(Debug)]
pub(super) struct Memory {
    /// `/`, but in tests.
    root: PathBuf,
    groups: Vec<Group>,
    /// Of this process alone.
    limit: Option<u64>,
}

/// A cgroup of this process, or one that it is in.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    folder: PathBuf,
    files: &'static Files,
}

/// What the kernel calls what.
#[derive(Debug, PartialEq, Eq)]
struct Files {
    limit: &'static str,
    usage: &'static str,
    inactive: &'static str,
}

const V2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    inactive: "inactive_file ",
};
const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive: "total_inactive_file ",
};

impl Memory {
    pub(super) fn of_this_process(limit: Option<u64>) -> Self {
        Self::under(Path::new("/"), limit)
    }

    fn under(root: &Path, limit: Option<u64>) -> Self {
        Self {
            groups: groups(root),
            root: root.to_owned(),
            limit,
        }
    }

    /// The least of the limits; `None`: there is none.
    pub(super) fn nearest(&self) -> Option<u64> {
        self.groups.iter().filter_map(Group::limit).chain(self.limit).min()
    }

    /// The part that is in use of whichever limit is nearest; `None` without one. `accounted`: bytes of which it is known that
    /// this process has them or will, so that what comes at once is not seen too late.
    pub(super) fn in_use(&self, accounted: u64) -> Option<f64> {
        let groups = self
            .groups
            .iter()
            .filter_map(|group| part(group.usage()?, accounted, group.limit()?));
        let own = self
            .limit
            .and_then(|limit| part(self.resident().unwrap_or(0), accounted, limit));
        groups.chain(own).reduce(f64::max)
    }

    /// What the kernel has given to this process.
    fn resident(&self) -> Option<u64> {
        let status = fs::read_to_string(self.root.join("proc/self/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib << 10)
    }
}

impl Group {
    fn limit(&self) -> Option<u64> {
        // "max" is no number.
        self.number(self.files.limit).filter(|limit| *limit < NO_LIMIT)
    }

    fn usage(&self) -> Option<u64> {
        let usage = self.number(self.files.usage)?;
        let stat = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let inactive = stat.lines().find_map(|line| line.strip_prefix(self.files.inactive));
        let inactive = inactive.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
        Some(usage.saturating_sub(inactive))
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a part is wanted, not bytes")]
fn part(used: u64, accounted: u64, limit: u64) -> Option<f64> {
    (limit > 0).then(|| used.max(accounted) as f64 / limit as f64)
}

/// Of this process and all above: the limit of a Pod is on the folder above its containers'. In a container that sees its own
/// cgroup alone, that is the root.
fn groups(root: &Path) -> Vec<Group> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut all = Vec::new();
    for line in own.lines() {
        let mut words = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let (mount, files) = match (number, controllers) {
            ("0", "") => ("sys/fs/cgroup", &V2),
            (_, controllers) if controllers.split(',').any(|one| one == "memory") => ("sys/fs/cgroup/memory", &V1),
            _ => continue,
        };
        let mount = root.join(mount);
        let path = Path::new(path.trim_start_matches('/'));
        let folders = path.ancestors().map(|path| mount.join(path));
        all.extend(folders.map(|folder| Group { folder, files }));
    }
    all.retain(|group| group.folder.join(group.files.limit).exists());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn in_use(root: &tempfile::TempDir, limit: Option<u64>) -> Option<f64> {
        Memory::under(root.path(), limit).in_use(0)
    }

    #[test]
    fn in_a_container_of_v2() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1000\n"),
            ("sys/fs/cgroup/memory.current", "700\n"),
            (
                "sys/fs/cgroup/memory.stat",
                "anon 500\ninactive_file 200\nactive_file 0\n",
            ),
        ]);
        assert_eq!(in_use(&root, None), Some(0.5));
        assert_eq!(
            Memory::under(root.path(), None).in_use(900),
            Some(0.9),
            "what is known to come"
        );
    }

    #[test]
    fn the_nearest_of_several_limits_counts() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/pod/router\n"),
            ("proc/self/status", "Name:\trouter\nVmRSS:\t       1 kB\n"),
            ("sys/fs/cgroup/pod/router/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/router/memory.current", "100\n"),
            ("sys/fs/cgroup/pod/memory.max", "1000\n"),
            ("sys/fs/cgroup/pod/memory.current", "250\n"),
        ]);
        assert_eq!(in_use(&root, None), Some(0.25));
        assert_eq!(in_use(&root, Some(2048)), Some(0.5));
        assert_eq!(in_use(&root, Some(8192)), Some(0.25));
        for (own, nearest) in [(None, 1000), (Some(8192), 1000), (Some(500), 500)] {
            assert_eq!(Memory::under(root.path(), own).nearest(), Some(nearest));
        }
    }

    #[test]
    fn in_a_container_of_v1() {
        let root = machine(&[
            ("proc/self/cgroup", "9:cpu:/x\n4:hugetlb,memory:/x\n0::/x\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "400\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "300\n"),
            (
                "sys/fs/cgroup/memory/x/memory.stat",
                "inactive_file 7\ntotal_inactive_file 100\n",
            ),
        ]);
        assert_eq!(in_use(&root, None), Some(0.5));
    }

    #[test]
    fn without_a_limit_nothing_is_known() {
        assert_eq!(in_use(&machine(&[]), None), None);
        assert_eq!(Memory::under(machine(&[]).path(), None).nearest(), None);
        let unlimited = machine(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.current", "700\n"),
        ]);
        assert_eq!(in_use(&unlimited, None), None);
        let here = Memory::of_this_process(Some(1 << 50)).in_use(0).unwrap();
        assert!(here > 0.0, "this process has some memory: {here}");
    }
}
