//! The targets over their corpus, and over what a few cheap mutations make of it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::path::{Path, PathBuf};

use portolan_fuzz::{TARGETS, seeds};

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(folder(target))
        .unwrap()
        .map(|file| file.unwrap().path());
    files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn seeds_are_checked_in_and_fresh() {
    for (target, name, content) in seeds::all() {
        let path = folder(target).join(name);
        // Not a setting of a program: the way all generated files here are written anew.
        if std::env::var_os("PORTOLAN_BLESS").is_some() {
            std::fs::create_dir_all(folder(target)).unwrap();
            std::fs::write(&path, &content).unwrap();
        }
        let held = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run `make bless`", path.display()));
        assert!(held == content, "{} is stale; run `make bless`", path.display());
    }
}

#[test]
fn every_target_holds_over_its_corpus() {
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        assert!(corpus.len() >= 6, "{name} has a corpus");
        for (path, data) in corpus {
            assert!(std::panic::catch_unwind(|| target(&data)).is_ok(), "{}", path.display());
        }
    }
}

/// Truncations, flipped bits and doubled stretches, always the same ones.
#[test]
fn every_target_holds_over_mutations_of_its_corpus() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below.max(1) as u64).unwrap()
    };
    for (name, target) in TARGETS {
        for (path, data) in corpus(name) {
            for _ in 0..40 {
                let mut mutated = data.clone();
                for _ in 0..=random(3) {
                    let at = random(mutated.len());
                    match random(4) {
                        0 => mutated.truncate(at),
                        1 if at < mutated.len() => mutated[at] ^= 1 << random(8),
                        2 => mutated.insert(at, b"\"\\[]{}:,0\n\xff\0"[random(12)]),
                        _ => mutated.extend_from_within(at..),
                    }
                }
                let held = std::panic::catch_unwind(|| target(&mutated));
                assert!(
                    held.is_ok(),
                    "{}: {:?}",
                    path.display(),
                    String::from_utf8_lossy(&mutated)
                );
            }
        }
    }
}
