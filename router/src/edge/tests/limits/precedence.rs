//! Which of several rules says what becomes of a request: the table that `docs/semantics.md#limits-and-breakers-of-callers`
//! promises, for limits and ordered faults, and for the caller's own election.

use super::*;

/// A rule: its trigger, its burst, and the resources that it is about.
type Rule = (&'static str, i64, &'static str);

const OPEN: Rule = ("ForceOpened", 1, "*");
const CLOSED: Rule = ("ForceClosed", 1, "*");
const LIMIT: Rule = ("LimiterOnly", 1, "*");
const LATCH: Rule = ("Normal", 1, "*");

/// Rules, in whatever order; an abort with 500, of these resources; what is asked for, three times; what is answered.
type Row = (&'static [Rule], Option<&'static str>, &'static str, [u16; 3]);

const TABLE: &[Row] = &[
    (&[], None, ONE, [200; 3]),
    // Each trigger alone.
    (&[LIMIT], None, ONE, [200, 429, 429]),
    (&[LATCH], None, ONE, [200, 429, 503]),
    (&[OPEN], None, ONE, [503; 3]),
    (&[CLOSED], None, ONE, [200; 3]),
    // All that match count, and one that refuses is enough.
    (&[LIMIT, ("LimiterOnly", 2, "pods")], None, ONE, [200, 429, 429]),
    (&[LIMIT, ("Normal", 2, "pods")], None, ONE, [200, 429, 429]),
    (&[LATCH, ("LimiterOnly", 1, "pods")], None, ONE, [200, 429, 503]),
    (&[("ForceOpened", 1, "configmaps"), LIMIT], None, ONE, [200, 429, 429]),
    // ForceOpened beats all, however narrow the others are.
    (&[OPEN, ("LimiterOnly", 9, "pods")], None, ONE, [503; 3]),
    (&[OPEN, ("Normal", 9, "pods")], None, ONE, [503; 3]),
    (&[OPEN, ("ForceClosed", 1, "pods")], None, ONE, [503; 3]),
    (&[("ForceOpened", 1, "pods"), LIMIT, LATCH, CLOSED], None, ONE, [503; 3]),
    // ForceClosed overrides no other's refusal.
    (&[("ForceClosed", 1, "pods"), LIMIT], None, ONE, [200, 429, 429]),
    (&[("ForceClosed", 1, "pods"), LATCH], None, ONE, [200, 429, 503]),
    // The election meets rules that name leases.
    (&[OPEN], None, ELECTION, [200; 3]),
    (&[LIMIT, LATCH], None, ELECTION, [200; 3]),
    (&[OPEN, ("LimiterOnly", 1, "leases")], None, ELECTION, [200, 429, 429]),
    (&[CLOSED, ("Normal", 1, "leases")], None, ELECTION, [200, 429, 503]),
    (&[CLOSED, ("ForceOpened", 1, "leases")], None, ELECTION, [503; 3]),
    // An ordered fault comes before all of them, and leaves the election alone in the same way.
    (&[LIMIT], Some("*"), ONE, [500; 3]),
    (&[OPEN], Some("pods"), ONE, [500; 3]),
    (&[LIMIT], Some("leases"), ONE, [200, 429, 429]),
    (&[OPEN], Some("*"), ELECTION, [200; 3]),
    (&[("ForceOpened", 1, "leases")], Some("*"), ELECTION, [503; 3]),
    (&[("ForceOpened", 1, "leases")], Some("leases"), ELECTION, [500; 3]),
];

impl World {
    /// Holds the caller by the rules of a row, which have names of their own so that they begin anew.
    fn hold_row(&self, name: &str, rules: impl Iterator<Item = Rule>, abort: Option<&str>) {
        let rules = rules
            .enumerate()
            .map(|(index, (trigger, burst, resource))| rule(&format!("{name}-{index}"), trigger, burst, &[resource]));
        let limits = json!({"selector": {}, "rateLimitings": rules.collect::<Vec<_>>()});
        let aborts = abort.map(|resource| {
            json!({"name": name, "abort": {"httpStatus": 500}, "match": {"resources": [{"resources": [resource]}]}})
        });
        let faults = json!({"selector": {}, "httpFault": aborts.into_iter().collect::<Vec<_>>()});
        self.operators
            .tell([told::circuit_breaker(&limits), told::fault_injection(&faults)]);
        self.operators.hold(&[told::CIRCUIT_BREAKER, told::FAULT_INJECTION]);
    }
}

#[tokio::test]
async fn precedence_is_as_it_is_written() {
    let world = World::new().await;
    for (number, (rules, abort, path, expected)) in TABLE.iter().enumerate() {
        let orders: [Vec<Rule>; 2] = [rules.to_vec(), rules.iter().rev().copied().collect()];
        for (order, rules) in orders.into_iter().enumerate() {
            world.hold_row(&format!("row-{number}-{order}"), rules.iter().copied(), *abort);
            let mut answered = [0; 3];
            for code in &mut answered {
                *code = world.code(path).await;
            }
            assert_eq!(answered, *expected, "{rules:?}, abort of {abort:?}, {path}");
        }
    }
}
