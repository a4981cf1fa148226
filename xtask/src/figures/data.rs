//! A figure: series of points, measured here or taken from the paper, and what to know about them.

use super::source::Rows;
use serde_json::{Value, json};

/// Where a series comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Here,
    Paper,
}

#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    /// Number or index of a category, and value.
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) is_log: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// Also the name of its files.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// Bars stand beside these; without them x is a number.
    pub(crate) categories: Vec<String>,
    pub(crate) series: Vec<Series>,
    /// Must be there, whatever was left out.
    pub(crate) needed: Vec<&'static str>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn log(label: impl Into<String>) -> Axis {
    Axis { label: label.into(), is_log: true }
}

pub(crate) fn linear(label: impl Into<String>) -> Axis {
    Axis { label: label.into(), is_log: false }
}

impl Figure {
    /// Without series yet.
    pub(crate) fn new(id: &'static str, title: &'static str, x: Axis, y: Axis) -> Figure {
        let needed = vec![super::SOCKSDIRECT, super::TCP];
        Figure { id, title, x, y, categories: Vec::new(), series: Vec::new(), needed, notes: Vec::new() }
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Figure {
        self.notes.push(note.into());
        self
    }

    pub(crate) fn series(
        mut self,
        name: impl Into<String>,
        origin: Origin,
        points: Vec<(f64, f64)>,
    ) -> Figure {
        if !points.is_empty() {
            self.series.push(Series { name: name.into(), origin, points });
        }
        self
    }

    /// A series for each system of these rows, with the number that `x` finds in a row.
    pub(crate) fn systems(mut self, rows: &Rows, x: &str, scale: impl Fn(f64, f64) -> f64) -> Figure {
        for system in rows.systems() {
            let points = rows.of(&system).filter_map(|row| {
                let x = row[x].as_f64()?;
                Some((x, scale(x, row["median"].as_f64()?)))
            });
            let points = points.collect();
            self = self.series(super::system_name(&system), Origin::Here, points);
        }
        self
    }

    /// Bars: a category for each name, and what each series has for it.
    pub(crate) fn bars(mut self, bars: Vec<Bar>) -> Figure {
        let mut names: Vec<(&'static str, Origin)> = Vec::new();
        for bar in &bars {
            for (name, origin, _) in &bar.values {
                if !names.contains(&(*name, *origin)) {
                    names.push((*name, *origin));
                }
            }
        }
        for (name, origin) in names {
            let at = |(index, bar): (usize, &Bar)| {
                let value = bar.values.iter().find(|(n, o, _)| (*n, *o) == (name, origin))?.2?;
                Some((index as f64, value))
            };
            let points = bars.iter().enumerate().filter_map(at).collect();
            self = self.series(name, origin, points);
        }
        self.categories = bars.into_iter().map(|bar| bar.name).collect();
        self
    }

    /// What is wrong with it.
    pub(crate) fn faults(&self) -> Vec<String> {
        let here = |name: &&&str| {
            self.series.iter().any(|series| series.origin == Origin::Here && series.name == **name)
        };
        let missing = self.needed.iter().filter(|name| !here(name)).map(|name| format!("{name} is missing"));
        // Nothing can be shown at zero of a logarithmic axis; a linear one may well say that nothing happens.
        let is_sound = |(x, y): &(f64, f64)| {
            x.is_finite() && y.is_finite() && (*y > 0.0 || (*y == 0.0 && !self.y.is_log))
        };
        let unsound = self.series.iter().filter(|series| !series.points.iter().all(is_sound));
        missing.chain(unsound.map(|series| format!("{} has no sound values", series.name))).collect()
    }

    pub(crate) fn json(&self, machine: &Value) -> Value {
        let place = |x: f64| match self.categories.get(x as usize) {
            Some(category) => json!(category),
            None => json!(x),
        };
        let series = self.series.iter().map(|series| {
            let points: Vec<Value> =
                series.points.iter().map(|(x, y)| json!({"x": place(*x), "y": y})).collect();
            let origin = if series.origin == Origin::Here { "measured here" } else { "the paper" };
            json!({"name": series.name, "origin": origin, "points": points})
        });
        json!({
            "id": self.id, "title": self.title, "x": self.x.label, "y": self.y.label,
            "series": series.collect::<Vec<_>>(), "notes": self.notes, "machine": machine,
        })
    }
}

/// One category and its values.
pub(crate) struct Bar {
    name: String,
    values: Vec<(&'static str, Origin, Option<f64>)>,
}

pub(crate) fn bar(name: impl Into<String>) -> Bar {
    Bar { name: name.into(), values: Vec::new() }
}

impl Bar {
    pub(crate) fn here(mut self, name: &'static str, value: Option<f64>) -> Bar {
        self.values.push((name, Origin::Here, value));
        self
    }

    pub(crate) fn paper(mut self, name: &'static str, value: Option<f64>) -> Bar {
        self.values.push((name, Origin::Paper, value));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_without_its_series_is_faulty() {
        let mut figure = Figure::new("x", "X", log("size"), log("ns"));
        figure.needed = vec!["a"];
        assert_eq!(figure.clone().faults(), ["a is missing"]);
        let whole = figure.clone().series("a", Origin::Here, vec![(1.0, 2.0)]);
        assert!(whole.faults().is_empty());
        assert_eq!(
            figure.series("a", Origin::Here, vec![(1.0, f64::NAN)]).faults(),
            ["a has no sound values"]
        );
    }

    #[test]
    fn bars_share_their_categories() {
        let bars = vec![bar("one").here("a", Some(1.0)).paper("b", None), bar("two").paper("b", Some(2.0))];
        let figure = Figure::new("x", "X", linear(""), log("ns")).bars(bars);
        assert_eq!(figure.categories, ["one", "two"]);
        assert_eq!(figure.series.len(), 2);
        assert_eq!(figure.series[1].points, [(1.0, 2.0)]);
        assert_eq!(figure.json(&Value::Null)["series"][1]["points"][0]["x"], "two");
    }
}
