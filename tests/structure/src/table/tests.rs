//! What a table allows, and what is wrong with one.

use std::path::Path;

use super::{Table, names};
use crate::arrows::arrows;
use crate::lex::tokens;
use crate::scan::scan;
use crate::tree::Tree;

/// What is wrong with a table beside a crate of one file.
fn problems(table: &str, source: &str) -> Vec<String> {
    let mut tree = Tree::default();
    tree.note(Path::new("/w/src/lib.rs"), &[], &scan(&tokens(source), false));
    Table::parse("x.txt", table).problems(&tree, &arrows(&tree), Path::new("/w"))
}

const SOURCE: &str = "mod low { pub struct L; }\nmod high { use crate::low::L; }";

#[test]
fn what_the_table_allows_is_right() {
    assert!(problems("# remark\nlow # a word\nhigh # holds it\n    low\n", SOURCE).is_empty());
}

#[test]
fn an_arrow_that_is_not_allowed_is_told_with_its_line() {
    let expected = "src/lib.rs:2: high imports low (crate::low::L), which x.txt does not allow";
    assert_eq!(problems("low # a\nhigh # b", SOURCE), [expected]);
}

#[test]
fn an_arrow_that_nobody_uses_is_told() {
    let expected = "x.txt:2: high no longer imports low: take it out";
    assert_eq!(
        problems("low # a\nhigh # b\n  low", "mod low {} mod high {}"),
        [expected]
    );
}

#[test]
fn a_table_cannot_hold_a_circle() {
    let source = "mod a { use crate::b::B; pub struct A; } mod b { use crate::a::A; pub struct B; }";
    let expected = "x.txt:1: a may not import b, which does not stand above it";
    assert_eq!(problems("a # x\n    b\nb # y\n    a", source), [expected]);
}

#[test]
fn every_module_has_one_row_with_a_reason() {
    let expected = [
        "x.txt:1: low has no reason",
        "x.txt:2: gone is no module of the crate",
        "x.txt:3: low has two rows",
        "x.txt: high has no row",
        "src/lib.rs:2: high imports low (crate::low::L), which x.txt does not allow",
    ];
    assert_eq!(problems("low\ngone # a\nlow # b", SOURCE), expected);
}

#[test]
fn nothing_imports_items_of_the_root() {
    let expected = "src/lib.rs:1: a imports crate (super::R), which x.txt does not allow";
    assert_eq!(problems("a # b", "pub struct R; mod a { use super::R; }"), [expected]);
}

#[test]
fn layers_go_one_way() {
    let source = "mod value { mod a { pub struct A; } mod b { use super::a::A; use crate::stage::c::C; } }
        mod stage { mod c { use crate::value::a::A; pub struct C; } }";
    let table = "layers: value stage\nvalue::a # x\nstage::c # x\n value::{a}\nvalue::b # x\n value::{a}, stage::{c}";
    assert_eq!(
        problems(table, source),
        ["x.txt:5: value::b stands under a higher layer"]
    );
}

#[test]
fn imports_may_be_grouped() {
    assert_eq!(names("a, b::{c, d}, e"), ["a", "b::c", "b::d", "e"]);
}
