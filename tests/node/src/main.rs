//! `portolan-node`: runs the Pods of one Node until it is told to stop.

fn main() {}
