//! The grammar by table, the algebra by law. `tests/tests/crds.rs` asks a real API server the same questions.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use proptest::prelude::*;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn parse(text: &str) -> Selector {
    Selector::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn reads_the_grammar_and_prints_it_canonically() {
    let cases = [
        ("", ""),
        (" \t\r\n", ""),
        ("k=v", "k=v"),
        ("k==v", "k=v"),
        ("k = v ", "k=v"),
        ("k!=v", "k!=v"),
        ("k=", "k="),
        ("k=,l", "k=,l"),
        ("k", "k"),
        ("!k", "!k"),
        ("! k", "!k"),
        ("k in (v)", "k=v"),
        ("k in(b,a)", "k in (a,b)"),
        ("k notin ( a , b )", "k notin (a,b)"),
        ("k in (,)", "k="),
        ("k in ()", "k="),
        ("k in (,,)", "k="),
        ("k in (a,,)", "k in (,a)"),
        ("k notin ( )", "k!="),
        ("k in (,a)", "k in (,a)"),
        ("k in (a,)", "k in (,a)"),
        ("k in (a,,b)", "k in (,a,b)"),
        ("k>1,k<9", "k>1,k<9"),
        ("k > 01", "k>1"),
        ("in in (in,notin)", "in in (in,notin)"),
        ("notin notin (x)", "notin!=x"),
        ("in", "in"),
        ("!in,notin=in", "!in,notin=in"),
        ("b=1,a=2", "a=2,b=1"),
        (
            "ctrlmesh.kusionstack.io/namespace in (ns-b,ns-a)",
            "ctrlmesh.kusionstack.io/namespace in (ns-a,ns-b)",
        ),
    ];
    for (text, canonical) in cases {
        assert_eq!(parse(text).to_string(), canonical, "{text:?}");
    }
}

#[test]
fn refuses_what_the_api_server_refuses() {
    let cases = [
        ",",
        "a,",
        ",a",
        "a,,b",
        "=v",
        "a=b=c",
        "a===b",
        "a=!b",
        "a b",
        "!a=b",
        "!a in (b)",
        "!!a",
        "a in",
        "a in (",
        "a in b",
        "a in (b",
        "a in (b c)",
        "a in (b,c))",
        "a in ((b))",
        "()",
        "a=(b)",
        "a>",
        "a>b",
        "a<1.5",
        "a>-1",
        "a>9223372036854775808",
        "a>1,b>",
        "-a",
        "a-",
        "a/",
        "/a",
        "a/b/c",
        "A.b/c",
        "a=b/c",
        "a=-b",
        "a=b-",
        "ä",
        "a=ä",
        "a\0",
        "a=\0b",
        "in in in (a)",
    ];
    for text in cases {
        assert!(
            Selector::parse(text).is_err(),
            "{text:?} read as {:?}",
            Selector::parse(text)
        );
    }
    let long = "a".repeat(64);
    assert!(Selector::parse(&long).is_err() && Selector::parse(&format!("a={long}")).is_err());
}

#[test]
fn contradictions_are_nothing() {
    let cases = [
        ("k=a", "k=b"),
        ("k", "!k"),
        ("k=a", "!k"),
        ("k in (a,b)", "k notin (b,a)"),
        ("k=a", "k!=a"),
        ("k in (a,b)", "k in (c,d)"),
        ("k>5", "k<6"),
        ("k>5", "!k"),
        ("k>9223372036854775807", ""),
        ("k in (1,2,x)", "k>2"),
        ("k=", "k=a"),
    ];
    for (a, b) in cases {
        let both = parse(a).and(&parse(b));
        assert!(both.is_nothing(), "{a:?} and {b:?}: {both}");
        assert!(parse(&both.to_string()).is_nothing(), "printed");
        assert!(both.and(&Selector::everything()).is_nothing());
        assert!(!both.matches(&BTreeMap::new()));
    }
}

#[test]
fn and_says_each_fact_once() {
    let cases = [
        ("k in (a,b,c)", "k in (b,c,d)", "k in (b,c)"),
        ("k", "k=a", "k=a"),
        ("k", "k", "k"),
        ("!k", "k!=a", "!k"),
        ("k!=a", "k!=b", "k notin (a,b)"),
        ("k", "k!=a", "k!=a,k"),
        ("k in (a,b)", "k!=a", "k=b"),
        ("k in (1,5,9)", "k>1,k<9", "k=5"),
        ("k>1", "k>3", "k>3"),
        ("k<1", "k<3,k", "k<1"),
        ("k>5", "k<7", "k>5,k<7"),
        ("a=1", "b=2", "a=1,b=2"),
        ("a=1", "", "a=1"),
    ];
    for (a, b, both) in cases {
        assert_eq!(parse(a).and(&parse(b)).to_string(), both, "{a:?} and {b:?}");
        assert_eq!(parse(b).and(&parse(a)).to_string(), both, "{b:?} and {a:?}");
    }
}

#[test]
fn absent_labels_satisfy_only_negations() {
    let none = BTreeMap::new();
    let cases = [
        ("k=a", false),
        ("k!=a", true),
        ("k notin (a)", true),
        ("k", false),
        ("!k", true),
        ("k>0", false),
        ("k<0", false),
        ("", true),
    ];
    for (text, matched) in cases {
        assert_eq!(parse(text).matches(&none), matched, "{text:?}");
    }
    assert!(!parse("k>0").matches(&labels(&[("k", "word")])));
    assert!(parse("k>0").matches(&labels(&[("k", "07")])));
}

#[test]
fn reads_label_selectors() {
    let expression = |operator: &str, values: &[&str]| LabelSelectorRequirement {
        key: "k".to_owned(),
        operator: operator.to_owned(),
        values: (!values.is_empty()).then(|| values.iter().map(|value| (*value).to_owned()).collect()),
    };
    let read = |expression| {
        let match_labels = Some(labels(&[("app", "foo")]));
        Selector::from_label_selector(&LabelSelector {
            match_labels,
            match_expressions: Some(vec![expression]),
        })
        .map(|selector| selector.to_string())
    };
    assert_eq!(read(expression("In", &["b", "a"])).as_deref(), Ok("app=foo,k in (a,b)"));
    assert_eq!(read(expression("NotIn", &["a"])).as_deref(), Ok("app=foo,k!=a"));
    assert_eq!(read(expression("Exists", &[])).as_deref(), Ok("app=foo,k"));
    assert_eq!(read(expression("DoesNotExist", &[])).as_deref(), Ok("app=foo,!k"));
    for refused in [
        expression("In", &[]),
        expression("Exists", &["a"]),
        expression("Gt", &["1"]),
        expression("In", &["a b"]),
    ] {
        assert!(read(refused).is_err());
    }
    assert!(Selector::from_label_selector(&LabelSelector::default()).is_ok_and(|selector| selector.is_everything()));
}

/// Few keys and values, so that requirements meet.
fn requirement() -> impl Strategy<Value = Requirement> {
    let operator = prop::sample::select(vec![
        Operator::In,
        Operator::NotIn,
        Operator::Exists,
        Operator::DoesNotExist,
        Operator::GreaterThan,
        Operator::LessThan,
    ]);
    let value = prop::sample::select(vec!["", "a", "in", "0", "1", "2", "03", "9223372036854775807"]);
    let key = prop::sample::select(vec!["k", "in", "x.y/z"]);
    (key, operator, prop::collection::btree_set(value, 0..4))
        .prop_filter_map("values fit the operator", |(key, operator, values)| {
            Requirement::new(key, operator, values).ok()
        })
}

fn selector() -> impl Strategy<Value = Selector> {
    prop::collection::vec(requirement(), 0..5).prop_map(Selector::from_requirements)
}

fn object() -> impl Strategy<Value = BTreeMap<String, String>> {
    let value = prop::sample::select(vec![
        "",
        "a",
        "b",
        "in",
        "0",
        "1",
        "2",
        "3",
        "03",
        "9223372036854775807",
    ]);
    let key = prop::sample::select(vec!["k", "in", "x.y/z", "other"]);
    prop::collection::btree_map(key.prop_map(str::to_owned), value.prop_map(str::to_owned), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn reduction_keeps_the_meaning(requirements in prop::collection::vec(requirement(), 0..6), object in object()) {
        let each = requirements.iter().all(|one| one.accepts(object.get(one.key()).map(String::as_str)));
        prop_assert_eq!(Selector::from_requirements(requirements).matches(&object), each);
    }

    #[test]
    fn and_is_exactly_both(a in selector(), b in selector(), object in object()) {
        prop_assert_eq!(a.and(&b).matches(&object), a.matches(&object) && b.matches(&object));
    }

    #[test]
    fn and_never_widens_what_a_client_prints(shard in selector(), client in "\\PC{0,24}|[kin=!()a0,<> ]{0,24}", object in object()) {
        if let Ok(client) = Selector::parse(&client) {
            let sent = parse(&shard.and(&client).to_string());
            prop_assert!(!sent.matches(&object) || shard.matches(&object));
        }
    }

    #[test]
    fn and_is_a_semilattice(a in selector(), b in selector(), c in selector()) {
        prop_assert_eq!(a.and(&b), b.and(&a));
        prop_assert_eq!(a.and(&b).and(&c), a.and(&b.and(&c)));
        prop_assert_eq!(a.and(&a), a.clone());
        prop_assert_eq!(a.and(&Selector::everything()), a);
    }

    #[test]
    fn what_is_printed_reads_back(a in selector()) {
        prop_assert_eq!(parse(&a.to_string()), a);
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = Selector::parse(&text);
    }
}
