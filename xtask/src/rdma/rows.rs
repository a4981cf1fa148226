//! What is measured, and the table that becomes of it.

use harness::report::{median, table};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// Microseconds until the answer to a message of the same size is there.
    RoundTrip,
    /// One way, a second.
    Messages,
    /// One way, in megabytes a second.
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Road {
    /// perftest's RDMA writes.
    Write,
    /// perftest's sends.
    Send,
    /// Our carrier over verbs, without sockets and engines.
    Carrier,
    /// TCP sockets of the kernel.
    Kernel,
    /// The same sockets and programs, with the library and engines.
    Ours,
}

impl Road {
    const ALL: [Road; 5] = [Road::Write, Road::Send, Road::Carrier, Road::Kernel, Road::Ours];

    pub(super) fn name(self) -> &'static str {
        match self {
            Road::Write => "verbs_write",
            Road::Send => "verbs_send",
            Road::Carrier => "our_carrier",
            Road::Kernel => "kernel_tcp",
            Road::Ours => "socksdirect",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) what: What,
    pub(super) size: usize,
    /// Of perftest's messages.
    pub(super) count: usize,
}

/// The whole.
pub(super) const CASES: [Case; 5] = [
    Case { what: What::RoundTrip, size: 8, count: 4000 },
    Case { what: What::RoundTrip, size: 64, count: 4000 },
    Case { what: What::RoundTrip, size: 1 << 20, count: 60 },
    Case { what: What::Messages, size: 64, count: 20_000 },
    Case { what: What::Bytes, size: 1 << 20, count: 200 },
];
/// Shows that each road works.
pub(super) const SHORT: [Case; 1] = [Case { what: What::RoundTrip, size: 8, count: 500 }];

impl Case {
    pub(super) fn name(&self) -> String {
        let size = if self.size >= 1 << 20 {
            format!("{} MiB", self.size >> 20)
        } else {
            format!("{} B", self.size)
        };
        match self.what {
            What::RoundTrip => format!("round trip of {size}, us"),
            What::Messages => format!("messages of {size}, 1/s"),
            What::Bytes => format!("stream of {size}, MB/s"),
        }
    }

    /// perftest's writes are waited for by spinning, which one processor for both ends does not bear. The carrier's two ends are one program's.
    pub(super) fn roads(&self, is_one: bool, is_counting: bool) -> Vec<Road> {
        let is_there = |road: &Road| match road {
            Road::Write => !is_counting,
            Road::Carrier => is_one,
            _ => true,
        };
        Road::ALL.into_iter().filter(is_there).collect()
    }

    /// How many times as good as `other` is `own`.
    fn gain(&self, own: f64, other: f64) -> f64 {
        if self.what == What::RoundTrip { other / own } else { own / other }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) case: Case,
    pub(super) road: Road,
    pub(super) value: f64,
}

const FIGURE: &str = "figure ";

impl Figure {
    /// As it is said on a console.
    pub(super) fn line(&self) -> String {
        format!("{FIGURE}{} {} {} {}", self.case.what as u8, self.case.size, self.road.name(), self.value)
    }

    pub(super) fn parse(line: &str) -> Option<Figure> {
        let mut words = line.strip_prefix(FIGURE)?.split(' ');
        let (what, size): (u8, usize) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let case = CASES.into_iter().find(|case| case.what as u8 == what && case.size == size)?;
        let name = words.next()?;
        let road = Road::ALL.into_iter().find(|road| road.name() == name)?;
        let value = words.next()?.parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0)?;
        Some(Figure { case, road, value })
    }
}

/// Medians of each road of a case.
pub(super) struct Row {
    case: Case,
    values: BTreeMap<Road, f64>,
}

impl Row {
    /// All of a run, in the order of the cases.
    pub(super) fn all(figures: &[Figure]) -> Vec<Row> {
        let mut cases: BTreeMap<Case, BTreeMap<Road, Vec<f64>>> = BTreeMap::new();
        for figure in figures {
            cases.entry(figure.case).or_default().entry(figure.road).or_default().push(figure.value);
        }
        let medians = |roads: BTreeMap<Road, Vec<f64>>| {
            roads.into_iter().map(|(road, values)| (road, median(&values))).collect()
        };
        cases.into_iter().map(|(case, roads)| Row { case, values: medians(roads) }).collect()
    }

    fn of(&self, road: Road) -> f64 {
        self.values.get(&road).copied().unwrap_or(f64::NAN)
    }

    /// Against raw verbs, by writes where those were measured, and against the kernel.
    fn gains(&self) -> [f64; 2] {
        let verbs = if self.values.contains_key(&Road::Write) { Road::Write } else { Road::Send };
        [verbs, Road::Kernel].map(|other| self.case.gain(self.of(Road::Ours), self.of(other)))
    }

    pub(super) fn json(&self) -> Value {
        let [verbs, kernel] = self.gains();
        let mut row = json!({ "case": self.case.name(), "size": self.case.size });
        for road in Road::ALL {
            row[road.name()] = self.of(road).into();
        }
        row["times_verbs"] = verbs.into();
        row["times_kernel_tcp"] = kernel.into();
        row
    }

    fn cells(&self) -> Vec<String> {
        let number = |value: f64| match value {
            none if none.is_nan() => "-".to_owned(),
            large if large >= 1000.0 => harness::report::thousands(large),
            small => format!("{small:.1}"),
        };
        let values = Road::ALL.map(|road| number(self.of(road)));
        let gains = self.gains().map(|gain| format!("{gain:.2}"));
        [self.case.name()].into_iter().chain(values).chain(gains).collect()
    }
}

pub(super) fn text(rows: &[Row]) -> String {
    let names = Road::ALL.map(Road::name);
    let header: Vec<&str> =
        ["case"].into_iter().chain(names).chain(["times_verbs", "times_kernel_tcp"]).collect();
    table(&header, &rows.iter().map(Row::cells).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_back_from_consoles() {
        let figure = Figure { case: CASES[2], road: Road::Ours, value: 12.5 };
        assert_eq!(Figure::parse(&figure.line()), Some(figure));
        for bad in
            ["figure 0 8 verbs_write NaN", "figure 0 8 verbs_write 0", "figure 7 8 verbs_write 1", "figure 0"]
        {
            assert_eq!(Figure::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn less_time_and_more_messages_are_better() {
        let figure = |at: usize, road, value| Figure { case: CASES[at], road, value };
        let rows = Row::all(&[
            figure(0, Road::Write, 20.0),
            figure(0, Road::Ours, 40.0),
            figure(0, Road::Kernel, 80.0),
            figure(3, Road::Write, 100.0),
            figure(3, Road::Ours, 300.0),
            figure(3, Road::Kernel, 50.0),
        ]);
        assert_eq!(rows.iter().map(Row::gains).collect::<Vec<_>>(), [[0.5, 2.0], [3.0, 6.0]]);
        assert!(rows[0].json()["verbs_send"].is_null());
    }
}
