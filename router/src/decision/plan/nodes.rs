//! Nodes that two members have by one name (`docs/semantics.md#nodes-of-one-name`).
//!
//! Clients join objects to Nodes by name alone: `kubectl drain n` cordons the Node that the merged view shows and deletes the
//! Pods of every Node of that name. So what is done to such a name, or asked by it, is refused, and what is only read is
//! told. Which names those are the members' agents say, so that it is known while one is away; of a member that has not said,
//! the objects themselves are looked at where they are written (`Holder::one_of`). Caller: `merged`.

use super::choose::several;
use super::merged::{Merged, Outcome};
use super::{Plan, Refusal, Rule};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;

/// Where Leases of Nodes are.
const NODE_LEASES: &str = "kube-node-lease";
/// What a collection is chosen by where it is a Node's.
const NODE_NAME: &str = "spec.nodeName";

impl Merged<'_> {
    /// The plan, or the refusal of what is asked by the name of several Nodes.
    pub(super) fn but_of_one_node(&self, resource: &ResourceRequest, plan: impl FnOnce() -> Outcome) -> Outcome {
        let request = self.route.request;
        if let Some(node) = request.demanded(NODE_NAME)
            && let Some(message) = self.nodes_of_one_name(&node)
        {
            return Err(Refusal {
                rule: Rule::SeveralNodes,
                fault: Fault::BadRequest(format!("{NODE_NAME}={node} chooses by several Nodes: {message}")),
            });
        }
        let Some(message) = self.named_node(resource).and_then(|node| self.nodes_of_one_name(&node)) else {
            return plan();
        };
        if !request.is_read() {
            return Err(Refusal::forbidden(Rule::SeveralNodes, message));
        }
        plan().map(|(rule, plan)| (rule, warned(plan, &message)))
    }

    /// The Node that a request names: by its own name, by what has it too, or by a field selector.
    fn named_node(&self, resource: &ResourceRequest) -> Option<String> {
        let own = resource.is("", "nodes") || resource.is("storage.k8s.io", "csinodes");
        let leases = resource.is_leases() && resource.namespace.as_deref() == Some(NODE_LEASES);
        if !(own || leases) {
            return None;
        }
        match self.verb() {
            Verb::List | Verb::Watch if !resource.named_by_path => None,
            Verb::DeleteCollection => self.route.request.demanded_name(),
            // Behind `proxy` a Node is `[scheme:]name[:port]`.
            _ => super::single::connected(resource, self.verb()).name.clone(),
        }
    }

    /// What is said of a Node's name that several members are known to have.
    fn nodes_of_one_name(&self, node: &str) -> Option<String> {
        let clusters: Vec<&str> = self
            .holders()
            .filter(|cluster| self.route.snapshot.has_node(cluster, node))
            .collect();
        (clusters.len() > 1).then(|| several(&format!("Node {node}"), &clusters))
    }
}

fn warned(plan: Plan, message: &str) -> Plan {
    let warn = |warning: &mut Option<String>| {
        warning.get_or_insert_with(|| message.to_owned());
    };
    match plan {
        Plan::Forward(mut forward) => {
            warn(&mut forward.warning);
            Plan::Forward(forward)
        }
        Plan::Choose(mut choose) => {
            for candidate in &mut choose.candidates {
                warn(&mut candidate.forward.warning);
            }
            Plan::Choose(choose)
        }
        plan => plan,
    }
}
