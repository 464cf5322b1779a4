//! What tells in which member an object without a namespace is made: the one of its owners, as a member's garbage collector deletes
//! what has an owner that it cannot find; else the one that its annotation names; else the primary. Pure: `preflight::new_object` asks
//! the members that `new_object` says.

use super::Candidate;
use super::owners::{Owner, PATH as OWNERS, Sight};
use crate::value::classify::ResourceRequest;
use crate::value::fault::{Fault, InvalidField};
use crate::value::kinds::{Kinds, Scope};

/// Where the annotation is.
const ANNOTATIONS: &str = "metadata.annotations";

/// What tells the member of an object that is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placing {
    /// For messages: what is made.
    pub(crate) object: String,
    /// The annotation that names a member.
    pub(crate) annotation: String,
    /// The shard's ShardingConfig.
    pub(crate) shard: String,
    /// The members of the shard, the primary first: owners may be in each.
    pub(crate) holders: Vec<String>,
}

/// An object that is made by POST. The candidates: the members that may serve its kind and let the caller in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NewObject {
    /// What is made, without its name.
    pub(crate) resource: ResourceRequest,
    /// What tells the member.
    pub(crate) placing: Placing,
    /// Only one member may have one of its name.
    pub(crate) unique: bool,
    /// Members that do not let the router act as the caller, who has nothing there.
    pub(crate) closed: Vec<String>,
}

/// An owner that the body names, and what members have by its name.
pub(crate) struct Seen<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) sights: Vec<(String, Sight)>,
}

/// The plural name of an owner's kind and its scope, by the first of these clusters that serves it. 503 where none does and one of
/// them has not said what it serves.
pub(crate) fn kind_of<'a>(
    owner: &Owner,
    clusters: &[String],
    kinds: &'a Kinds,
) -> Result<Option<(&'a str, Scope)>, Fault> {
    let (group, kind) = (owner.group.as_str(), owner.kind.as_str());
    let mut unknown = None;
    for cluster in clusters {
        let served = kinds.member(cluster).and_then(|served| {
            let resource = served.resource_of(group, kind)?;
            Some((resource, served.get(group, resource)?.scope))
        });
        if served.is_some() {
            return Ok(served);
        }
        // Of a kind without a name it says whether it knows its group.
        if kinds.serves(cluster, group, "").is_none() {
            unknown = unknown.or(Some(cluster));
        }
    }
    match unknown {
        Some(cluster) => Err(Fault::Unavailable {
            message: format!(
                "whether member cluster {cluster} has {} is not known (yet): it does not say whether it serves that kind",
                owner.describe()
            ),
            cluster: Some(cluster.clone()),
            sent: false,
        }),
        None => Ok(None),
    }
}

impl Seen<'_> {
    /// The member that has it.
    pub(crate) fn cluster(&self) -> Option<&str> {
        let mut sights = self.sights.iter();
        sights.find_map(|(cluster, sight)| (*sight == Sight::Owner).then_some(cluster.as_str()))
    }

    fn is_in(&self, cluster: &str) -> bool {
        self.sights
            .iter()
            .any(|(other, sight)| other == cluster && *sight == Sight::Owner)
    }

    fn unknown(&self) -> Option<Fault> {
        self.sights.iter().find_map(|(_, sight)| match sight {
            Sight::Unknown(fault) => Some(fault.clone()),
            _ => None,
        })
    }

    /// Whether the object may have this owner in the member `here`.
    fn judge(&self, here: &str) -> Result<(), Fault> {
        let is_here = |(cluster, _): &&(String, Sight)| cluster == here;
        let own = self
            .sights
            .iter()
            .find(is_here)
            .map_or(&Sight::Nothing, |(_, sight)| sight);
        let others: Vec<_> = self.sights.iter().filter(|one| !is_here(one)).cloned().collect();
        self.owner.judge(here, own, &others)
    }
}

impl Placing {
    /// Which candidate it is: the one of all owners that any member has, else the one that the annotation names, else the first. An
    /// error if owners are apart, cannot be in that member, or might be anywhere.
    pub(crate) fn place(
        &self,
        candidates: &[Candidate],
        seen: &[Seen<'_>],
        named: Option<&str>,
    ) -> Result<usize, Fault> {
        let cluster = |index: usize| &*candidates[index].forward.target.cluster;
        let index_of = |wanted: &str| (0..candidates.len()).find(|index| cluster(*index) == wanted);
        let index = match self.home(seen)? {
            // Where its kind is not served, it is not made: the owners say in which member that is.
            Some(home) => index_of(home).unwrap_or_default(),
            None => match seen.iter().find_map(Seen::unknown) {
                Some(fault) => return Err(fault),
                None => named.map_or(Ok(0), |named| {
                    index_of(named).ok_or_else(|| self.no_candidate(named, candidates))
                })?,
            },
        };
        for seen in seen {
            seen.judge(cluster(index))?;
        }
        Ok(index)
    }

    /// What to warn of where nothing has told the member: an owner that no member shows may be in one that does not let the caller look.
    pub(crate) fn doubt(&self, seen: &[Seen<'_>], named: Option<&str>) -> Option<String> {
        let hidden = seen.iter().find_map(|seen| {
            let mut hides = seen.sights.iter().filter(|(_, sight)| *sight == Sight::Forbidden);
            hides
                .next()
                .filter(|_| seen.sights.len() > 1)
                .map(|(cluster, _)| (seen.owner, cluster))
        });
        let (owner, cluster) =
            hidden.filter(|_| named.is_none() && !seen.iter().any(|seen| seen.cluster().is_some()))?;
        Some(format!(
            "whether {} is in member cluster {cluster} is not known: it does not let this caller get it, so {} is made in the primary \
             cluster; let the caller get owners, or name the member by annotation {}",
            owner.describe(),
            self.object,
            self.annotation
        ))
    }

    /// The member that has all owners that any has; `None` if none has any. An error if they are apart, or one might be in a member
    /// that cannot be asked.
    fn home<'a>(&self, seen: &'a [Seen<'_>]) -> Result<Option<&'a str>, Fault> {
        let found = seen.iter().find_map(|seen| Some((seen, seen.cluster()?)));
        let Some((first, home)) = found else { return Ok(None) };
        let apart = seen
            .iter()
            .find_map(|seen| Some((seen, seen.cluster()?)).filter(|_| !seen.is_in(home)));
        if let Some((other, elsewhere)) = apart {
            return Err(self.apart([(first.owner, home), (other.owner, elsewhere)]));
        }
        match seen
            .iter()
            .filter(|seen| seen.cluster().is_none())
            .find_map(Seen::unknown)
        {
            Some(fault) => Err(fault),
            None => Ok(Some(home)),
        }
    }

    fn apart(&self, owners: [(&Owner, &str); 2]) -> Fault {
        let told = owners.map(|(owner, cluster)| format!("{} is in member cluster {cluster}", owner.describe()));
        Fault::Invalid {
            message: format!(
                "{}: {OWNERS}: {}: an object is in one member cluster, whose garbage collector deletes it if it does not find an \
                 owner there: name owners of one member cluster alone",
                self.object,
                told.join(", and ")
            ),
            fields: told.map(|message| InvalidField::of(OWNERS, message)).into(),
        }
    }

    fn no_candidate(&self, named: &str, candidates: &[Candidate]) -> Fault {
        let clusters = candidates.iter().map(|one| &*one.forward.target.cluster);
        let message = format!(
            "annotation {} names {named:?}, which is no member cluster of shard {} that this caller may make one in: name one of {}, or leave it out",
            self.annotation,
            self.shard,
            clusters.collect::<Vec<_>>().join(", ")
        );
        Fault::Invalid {
            message: format!("{}: {ANNOTATIONS}: {message}", self.object),
            fields: vec![InvalidField::of(ANNOTATIONS, message)],
        }
    }
}
