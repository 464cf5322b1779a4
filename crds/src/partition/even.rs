//! Shares whose sizes differ by at most one, with the fewest pairs moved.
//!
//! Every shard gets the quotient of pairs and shards, and as many of them as the remainder says get one more. Whoever had
//! more than that keeps as many; so the fewest pairs move if those get one more that had the most. What is free then, in
//! order, fills up the shards in order, so that a first partition is one range of pairs for each shard.

use std::cmp::Reverse;

/// The owner of each pair, given that of before.
pub(super) fn share_out(before: Vec<Option<usize>>, size: usize) -> Vec<usize> {
    let mut room = targets(&before, size);
    let mut owners = before;
    for owner in &mut owners {
        *owner = owner.filter(|owner| match &mut room[*owner] {
            0 => false,
            room => {
                *room -= 1;
                true
            }
        });
    }
    let mut next = 0;
    let owners = owners.into_iter().map(|owner| {
        owner.unwrap_or_else(|| {
            while room[next] == 0 {
                next += 1;
            }
            room[next] -= 1;
            next
        })
    });
    owners.collect()
}

/// How many pairs each shard gets.
fn targets(before: &[Option<usize>], size: usize) -> Vec<usize> {
    let mut had = vec![0_usize; size];
    for owner in before.iter().flatten() {
        had[*owner] += 1;
    }
    let (each, more) = (before.len() / size, before.len() % size);
    let mut by_size: Vec<usize> = (0..size).collect();
    by_size.sort_by_key(|shard| Reverse(had[*shard]));
    let mut targets = vec![each; size];
    for shard in by_size.into_iter().take(more) {
        targets[shard] += 1;
    }
    targets
}
