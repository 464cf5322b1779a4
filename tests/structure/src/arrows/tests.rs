//! Arrows are found in every way of importing.

use std::path::Path;

use super::{arrows, circles};
use crate::lex::tokens;
use crate::scan::scan;
use crate::tree::Tree;

/// A crate of one file with nested modules, which is read as many files would be.
fn tree(source: &str) -> Tree {
    let mut tree = Tree::default();
    tree.note(Path::new("lib.rs"), &[], &scan(&tokens(source), false));
    tree
}

fn found(source: &str) -> Vec<String> {
    arrows(&tree(source))
        .iter()
        .filter(|arrow| !arrow.from.is_empty())
        .map(|arrow| format!("{} -> {}", arrow.from.join("::"), arrow.to.join("::")))
        .collect()
}

#[test]
fn relative_paths_are_followed() {
    let source = "mod a { pub struct A; mod b { use super::A; use super::super::c::C; } } mod c { pub struct C; fn f() { self::f() } }";
    assert_eq!(found(source), ["a::b -> a", "a::b -> c"]);
}

#[test]
fn imports_on_the_way_are_followed_to_the_owner() {
    let source = "
        pub use a::{A, f as g}; pub use b::*;
        mod a { pub struct A; pub fn f() {} }
        mod b { pub struct B; }
        mod c { use crate::{A, B}; fn d() { crate::g() } }
        mod e { use crate::c; fn f() { c::d() } }
    ";
    assert_eq!(found(source), ["c -> a", "c -> a", "c -> b", "e -> c"]);
}

#[test]
fn what_another_crate_owns_is_no_arrow() {
    assert!(found("mod a { use std::fmt; use serde::de::Error; }").is_empty());
}

#[test]
fn items_of_the_root_belong_to_the_root() {
    assert_eq!(found("pub struct R; mod a { use crate::R; }"), ["a -> "]);
}

#[test]
fn circles_are_found_at_every_depth() {
    let source = "mod a { mod b { use super::c::d::D; } mod c { mod d { use crate::a::e::E; pub struct D; } } mod e { use super::b; pub struct E; } }
        mod f { use crate::a; }";
    let arrows = arrows(&tree(source));
    let circles = circles(&arrows);
    assert_eq!(circles.keys().collect::<Vec<_>>(), [&["a"]]);
    assert_eq!(circles[&vec!["a".to_owned()]].len(), 3);
}
