//! Words in code, not in comments, strings or tests.

use super::{Facts, scan};
use crate::lex::tokens;

fn read(source: &str) -> Facts {
    scan(&tokens(source), false)
}

/// Each path with the line it stands in.
fn paths(source: &str) -> Vec<String> {
    let facts = read(source);
    facts
        .paths
        .iter()
        .map(|named| format!("{} {}", named.line, named.path.join("::")))
        .collect()
}

#[test]
fn braces_of_imports_are_unfolded() {
    let source = "use crate::{a::b, c::{self, d as e, f::*},\n g};\nuse std::fmt;";
    let expected = [
        "1 crate::a::b",
        "1 crate::c",
        "1 crate::c::d",
        "1 crate::c::f::*",
        "2 crate::g",
        "3 std::fmt",
    ];
    assert_eq!(paths(source), expected);
    let imports: Vec<_> = read(source)
        .paths
        .into_iter()
        .filter_map(|named| named.import)
        .collect();
    assert_eq!(imports, ["b", "c", "e", "*", "g", "fmt"]);
}

#[test]
fn paths_in_code_and_macros_count() {
    let source = "fn f(a: crate::x::Y) { vec![super::z::<u8>(), $crate::w!()]; }";
    assert_eq!(paths(source), ["1 crate::x::Y", "1 super::z", "1 crate::w"]);
}

#[test]
fn visibility_comments_and_strings_do_not() {
    let source = "pub(in crate::a) fn f() { \"crate::b\"; } // crate::c\n/// [`crate::d`]\npub(super) mod e;";
    assert!(paths(source).is_empty());
}

#[test]
fn test_code_is_left_out() {
    let source = "
        #[cfg(test)]
        mod tests { use crate::a; fn f() { { crate::b::c() } } }
        #[cfg(test)] #[allow(x)]
        use crate::{c, d};
        #[cfg(all(test, unix))]
        fn e<A, B>(a: [u8; 2]) -> A { crate::f::g() }
        struct S { #[cfg(test)] field: crate::h::I, other: crate::j::K }
        #[cfg(test)]
        mod elsewhere;
        #[cfg(not(test))]
        use crate::l;
        fn m() { #[cfg(test)] crate::n::o(crate::p::Q { r: 1 }); crate::s::t(); }
        #[cfg(test)]
        const U: crate::u::U = crate::u::U { a: 1 };
        fn v() -> crate::v::V { #[cfg(test)] { crate::w::x(); } crate::y::z() }
    ";
    let expected = [
        "8 crate::j::K",
        "12 crate::l",
        "13 crate::s::t",
        "16 crate::v::V",
        "16 crate::y::z",
    ];
    assert_eq!(paths(source), expected);
}

#[test]
fn a_file_may_be_all_test() {
    assert!(paths("#![cfg(test)]\nuse crate::a;").is_empty());
}

#[test]
fn nested_modules_have_paths_of_their_own() {
    let facts = read("mod a { mod b; mod c { use super::d; } } mod e;");
    let modules: Vec<_> = facts
        .modules
        .iter()
        .map(|declared| (declared.inside.join("::"), declared.name.as_str(), declared.elsewhere))
        .collect();
    let expected = [("", "a", false), ("a", "b", true), ("a", "c", false), ("", "e", true)];
    assert_eq!(
        modules,
        expected.map(|(inside, name, elsewhere)| (inside.to_owned(), name, elsewhere))
    );
    assert_eq!(facts.paths[0].inside, ["a", "c"]);
}

#[test]
fn items_are_those_of_modules() {
    let facts = read("struct A; fn b() { const C: u8 = 1; } mod d { enum E {} } impl F { fn g() {} }");
    let items: Vec<_> = facts.items.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(items, ["A", "b", "E"]);
}
