//! `portolanctl apply`: judges the documents of files, and applies them to the hub if all are right.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use kube::ResourceExt as _;
use kube::api::{DynamicObject, PatchParams};

use crate::acceptance::{Verdict, judge};
use crate::apply::{apply_as, parse};
use crate::cli::{ApplyArgs, DryRun};
use crate::foreign::advice;
use crate::hub;
use crate::sentence;

/// Field manager of what people apply. Not that of what join and breaker write: an object applied without those fields would
/// lose them.
const MANAGER: &str = "portolanctl-apply";
/// In place of a file: what comes in.
const STDIN: &str = "-";

pub(crate) async fn run(args: &ApplyArgs) -> anyhow::Result<()> {
    let mut objects = Vec::new();
    for file in &args.files {
        objects.extend(documents(file)?);
    }
    if objects.is_empty() {
        bail!("there is no document to apply");
    }
    let verdicts = objects.iter().map(judge).collect::<anyhow::Result<Vec<_>>>()?;
    let told = told(&objects, &verdicts, args.dry_run);
    print!("{}", told.text);
    if told.failed > 0 {
        let nothing = if args.dry_run == DryRun::Client {
            ""
        } else {
            "; nothing was sent"
        };
        bail!(
            "{} of {} documents would not be accepted{nothing}",
            told.failed,
            objects.len()
        );
    }
    if args.dry_run == DryRun::Client {
        return Ok(());
    }
    let hub = hub::client(&args.hub, args.dir.as_deref()).await?;
    let mut parameters = PatchParams::apply(MANAGER).validation_strict();
    parameters.dry_run = args.dry_run == DryRun::Server;
    parameters.force = args.force_conflicts;
    for object in &objects {
        apply_as(&hub, object, &parameters).await.map_err(advised)?;
        let done = if parameters.dry_run {
            "applied (server dry run)"
        } else {
            "applied"
        };
        println!("{}: {done}", name_of(object));
    }
    Ok(())
}

/// A conflict with what was written by other means says what can be done about it.
fn advised(error: anyhow::Error) -> anyhow::Error {
    if sentence::status(&error).is_none_or(|status| status.code != 409) {
        return error;
    }
    let told = sentence::of(&error);
    anyhow!(
        "{told}; --force-conflicts takes these fields over from who wrote them, portolanctl's other commands as well"
    )
}

/// The objects of a file, or of what comes in.
pub(crate) fn documents(file: &Path) -> anyhow::Result<Vec<DynamicObject>> {
    let origin = file.display().to_string();
    let yaml = if origin == STDIN {
        let mut yaml = String::new();
        std::io::stdin().read_to_string(&mut yaml).map(|_| yaml)
    } else {
        std::fs::read_to_string(file)
    };
    parse(&origin, &yaml.with_context(|| format!("cannot read {origin}"))?)
}

/// What people read, and how many documents may not be applied.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    text: String,
    failed: usize,
}

/// Before something is applied only what is wrong, or not served, is told; of a dry run each document.
fn told(objects: &[DynamicObject], verdicts: &[Verdict], dry_run: DryRun) -> Told {
    let (mut lines, mut failed) = (Vec::new(), 0);
    let all = dry_run == DryRun::Client;
    for (object, verdict) in objects.iter().zip(verdicts) {
        let name = name_of(object);
        let fails = match verdict {
            Verdict::Foreign | Verdict::Accepted | Verdict::AcceptedInPart(_) => false,
            Verdict::NotServed(_) => all,
            Verdict::Wrong(_) => true,
        };
        failed += usize::from(fails);
        match verdict {
            Verdict::Foreign if all => {
                let told = advice(object).unwrap_or_else(|| "not of Portolan, not judged".to_owned());
                lines.push(format!("{name}: {told}"));
            }
            Verdict::Accepted if all => lines.push(format!("{name}: accepted")),
            Verdict::Foreign => lines.extend(advice(object).map(|told| format!("{name}: {told}"))),
            Verdict::Accepted => {}
            Verdict::AcceptedInPart(told) => {
                lines.extend(told.iter().map(|told| format!("{name}: accepted but for {told}")));
            }
            Verdict::NotServed(told) | Verdict::Wrong(told) => {
                lines.extend(told.iter().map(|told| format!("{name}: {told}")));
            }
        }
    }
    let text = lines.into_iter().map(|line| line + "\n").collect();
    Told { text, failed }
}

/// As names of policies are written everywhere else: `CircuitBreaker/ops/runaway`.
pub(crate) fn name_of(object: &DynamicObject) -> String {
    let kind = object.types.as_ref().map_or("object", |types| types.kind.as_str());
    match object.namespace() {
        Some(namespace) => format!("{kind}/{namespace}/{}", object.name_any()),
        None => format!("{kind}/{}", object.name_any()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_names_the_way_out() {
        let answered = |code| {
            let status = kube::core::Status::failure("1 conflict", "").with_code(code);
            let error = kube::Error::Api(Box::new(status));
            Err::<(), _>(error).context("cannot apply it").unwrap_err()
        };
        let told = advised(answered(409)).to_string();
        assert!(
            told.starts_with("cannot apply it: 1 conflict; --force-conflicts "),
            "{told}"
        );
        assert_eq!(sentence::of(&advised(answered(403))), "cannot apply it: 1 conflict");
    }

    const DOCUMENTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: ops}
---
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: FaultInjection
metadata: {name: good, namespace: ops}
spec: {selector: {}}
---
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: CircuitBreaker
metadata: {name: later, namespace: ops}
spec: {trafficInterceptRules: [{name: a, interceptType: Whitelist, contentType: Normal}]}
---
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: FaultInjection
metadata: {name: bad, namespace: ops}
spec: {until: later, httpFault: [{}]}
";

    fn lines(dry_run: DryRun) -> (Vec<String>, usize) {
        let objects = parse("test", DOCUMENTS).unwrap();
        let verdicts: Vec<_> = objects.iter().map(|object| judge(object).unwrap()).collect();
        let told = told(&objects, &verdicts, dry_run);
        // Up to the field; what is wrong with it is told by validation.
        let short = |line: &str| line.splitn(3, ": ").take(2).collect::<Vec<_>>().join(": ");
        (told.text.lines().map(short).collect(), told.failed)
    }

    #[test]
    fn a_dry_run_tells_of_each_document() {
        let expected = [
            "Namespace/ops: not of Portolan, not judged",
            "FaultInjection/ops/good: accepted",
            "CircuitBreaker/ops/later: spec.trafficInterceptRules",
            "FaultInjection/ops/bad: spec.until",
            "FaultInjection/ops/bad: spec.httpFault[0]",
        ];
        assert_eq!(lines(DryRun::Client), (expected.map(str::to_owned).to_vec(), 2));
    }

    #[test]
    fn what_is_not_served_yet_does_not_keep_the_rest_from_being_applied() {
        let expected = [
            "CircuitBreaker/ops/later: spec.trafficInterceptRules",
            "FaultInjection/ops/bad: spec.until",
            "FaultInjection/ops/bad: spec.httpFault[0]",
        ];
        for dry_run in [DryRun::None, DryRun::Server] {
            assert_eq!(lines(dry_run), (expected.map(str::to_owned).to_vec(), 1));
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = documents(Path::new("/no/such/file.yaml")).unwrap_err().to_string();
        assert_eq!(error, "cannot read /no/such/file.yaml");
    }
}
