//! The table of subjects: one entry per subject, in order of importance within its topic.

use crate::role::Role;
use crate::subjects;

/// One small program with a name `topic/what`.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

/// How many processes a subject has.
pub(crate) enum Kind {
    /// Client and server in one process.
    Solo(fn()),
    /// A server process and a client process, which talk out of band through their `Role`.
    Pair { server: fn(&mut Role), client: fn(&mut Role) },
}

impl Kind {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Kind::Solo(_) => "solo",
            Kind::Pair { .. } => "pair",
        }
    }
}

pub(crate) const fn solo(name: &'static str, body: fn()) -> Subject {
    Subject { name, kind: Kind::Solo(body) }
}

pub(crate) const fn pair(name: &'static str, server: fn(&mut Role), client: fn(&mut Role)) -> Subject {
    Subject { name, kind: Kind::Pair { server, client } }
}

pub(crate) fn subjects() -> impl Iterator<Item = &'static Subject> {
    subjects::TOPICS.iter().flat_map(|topic| topic.iter())
}

pub(crate) fn find(name: &str) -> Option<&'static Subject> {
    subjects().find(|subject| subject.name == name)
}
