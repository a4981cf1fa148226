//! A figure as SVG: lines with marks, or bars beside categories. The paper's own series are drawn thin and hollow.

use super::data::{Axis, Figure, Origin, Series};
use harness::Result;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (860, 520);
/// Colours that people with impaired colour vision can tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(150, 150, 150),
];

pub(crate) fn draw(figure: &Figure, path: &Path) -> Result<()> {
    let bars = !figure.categories.is_empty();
    let bars_height = TOP + 24 + figure.categories.len() as i32 * category_height(figure);
    let height = if bars { bars_height as u32 } else { SIZE.1 };
    let root = SVGBackend::new(path, (SIZE.0, height)).into_drawing_area();
    let done = root.fill(&WHITE).map_err(|error| error.to_string()).and_then(|()| match bars {
        true => draw_bars(figure, &root),
        false => draw_lines(figure, &root),
    });
    done?;
    root.present().map_err(|error| error.to_string())?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Outcome = std::result::Result<(), String>;

/// The range of some values, with a margin; never empty.
fn range(values: impl Iterator<Item = f64>, axis: &Axis) -> std::ops::Range<f64> {
    let values: Vec<f64> =
        values.filter(|value| value.is_finite() && (*value > 0.0 || !axis.is_log)).collect();
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match (low <= high, axis.is_log) {
        (false, _) => 1.0..10.0,
        (true, true) => low / 1.5..high * 1.5,
        (true, false) => 0.0..(high * 1.1).max(f64::MIN_POSITIVE),
    }
}

fn draw_lines(figure: &Figure, root: &Area) -> Outcome {
    let x = range(figure.series.iter().flat_map(|s| &s.points).map(|(x, _)| *x), &figure.x);
    let y = range(figure.series.iter().flat_map(|s| &s.points).map(|(_, y)| *y), &figure.y);
    match (figure.x.is_log, figure.y.is_log) {
        (true, true) => lines(figure, root, x.log_scale(), y.log_scale()),
        (true, false) => lines(figure, root, x.log_scale(), y),
        (false, true) => lines(figure, root, x, y.log_scale()),
        (false, false) => lines(figure, root, x, y),
    }
}

fn lines<X, Y>(figure: &Figure, root: &Area, x: X, y: Y) -> Outcome
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let text = |error: DrawingAreaErrorKind<_>| error.to_string();
    let (left, right) = root.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let mut chart = ChartBuilder::on(&left)
        .caption(figure.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(78)
        .build_cartesian_2d(x, y)
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc(&figure.x.label)
        .y_desc(&figure.y.label)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .light_line_style(WHITE)
        .draw()
        .map_err(text)?;
    for (index, series) in figure.series.iter().enumerate() {
        let style = style(index, series);
        let mark = if series.origin == Origin::Here { style.filled() } else { style };
        let points = || series.points.iter().copied();
        chart.draw_series(LineSeries::new(points(), style)).map_err(text)?;
        chart.draw_series(points().map(|point| Circle::new(point, 4, mark))).map_err(text)?;
        let y = TOP + 22 * index as i32;
        right.draw(&Circle::new((6, y), 4, mark)).map_err(text)?;
        right.draw(&Text::new(label(series), (18, y - 6), font(13))).map_err(text)?;
    }
    Ok(())
}

fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK)
}

fn style(index: usize, series: &Series) -> ShapeStyle {
    let colour = COLOURS[index % COLOURS.len()];
    colour.stroke_width(if series.origin == Origin::Here { 2 } else { 1 })
}

fn label(series: &Series) -> String {
    match series.origin {
        Origin::Here => series.name.clone(),
        Origin::Paper => format!("{} (paper)", series.name),
    }
}

const LABELS_WIDTH: i32 = 300;
const LEGEND_WIDTH: u32 = 190;
const TOP: i32 = 84;
const BAR_HEIGHT: i32 = 14;

fn category_height(figure: &Figure) -> i32 {
    figure.series.len() as i32 * BAR_HEIGHT + 8
}

/// Horizontal bars, the longest nearly as wide as the picture, each with its value.
fn draw_bars(figure: &Figure, root: &Area) -> Outcome {
    let text = |error: DrawingAreaErrorKind<_>| error.to_string();
    root.draw(&Text::new(figure.title, (16, 12), font(20))).map_err(text)?;
    let axis = format!("{}{}", figure.y.label, if figure.y.is_log { ", logarithmic" } else { "" });
    root.draw(&Text::new(axis, (16, 38), font(13))).map_err(text)?;
    for (index, series) in figure.series.iter().enumerate() {
        let x = 16 + index as i32 * (SIZE.0 as i32 - 32) / figure.series.len().max(4) as i32;
        root.draw(&Rectangle::new([(x, 60), (x + 12, 72)], fill(index, series))).map_err(text)?;
        root.draw(&Text::new(label(series), (x + 18, 60), font(13))).map_err(text)?;
    }
    let values = range(figure.series.iter().flat_map(|s| &s.points).map(|(_, y)| *y), &figure.y);
    for (category, name) in figure.categories.iter().enumerate() {
        let top = TOP + category as i32 * category_height(figure);
        root.draw(&Text::new(name.as_str(), (16, top + 1), font(13))).map_err(text)?;
        for (index, series) in figure.series.iter().enumerate() {
            let Some((_, value)) = series.points.iter().find(|(x, _)| *x == category as f64) else {
                continue;
            };
            let end = LABELS_WIDTH + width(*value, &values, figure.y.is_log);
            let y = top + index as i32 * BAR_HEIGHT;
            let corners = [(LABELS_WIDTH, y), (end, y + BAR_HEIGHT - 2)];
            root.draw(&Rectangle::new(corners, fill(index, series))).map_err(text)?;
            root.draw(&Text::new(short(*value), (end + 5, y), font(12))).map_err(text)?;
        }
    }
    Ok(())
}

fn fill(index: usize, series: &Series) -> ShapeStyle {
    let style = style(index, series);
    if series.origin == Origin::Here { style.filled() } else { style }
}

/// Pixels of a bar.
fn width(value: f64, range: &std::ops::Range<f64>, is_log: bool) -> i32 {
    let share = match is_log {
        true => (value / range.start).ln() / (range.end / range.start).ln(),
        false => value / range.end,
    };
    let most = SIZE.0 as i32 - LABELS_WIDTH - 70;
    ((share * f64::from(most)) as i32).clamp(1, most)
}

/// Three digits that say something, with k, M or G.
pub(crate) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 0.9995e9 => (value / 1e9, "G"),
        v if v >= 0.9995e6 => (value / 1e6, "M"),
        v if v >= 0.9995e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{scaled:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::data::{bar, linear, log};
    use harness::scratch::Scratch;

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(0.0), "0");
        assert_eq!(short(0.25), "0.25");
        assert_eq!(short(8.0), "8");
        assert_eq!(short(4096.0), "4096");
        assert_eq!(short(65536.0), "65.5k");
        assert_eq!(short(23e6), "23M");
    }

    #[test]
    fn both_kinds_are_drawn() {
        let scratch = Scratch::new("chart").unwrap();
        let points = vec![(8.0, 100.0), (64.0, 200.0)];
        let figure = Figure::new("x", "A title", log("size"), log("ns"));
        let lines = figure.clone().series("one", Origin::Here, points).series(
            "two",
            Origin::Paper,
            vec![(8.0, 300.0)],
        );
        let bars = Figure { y: linear("ns"), ..figure };
        let bars = bars.bars(vec![bar("first").here("one", Some(1.0)).paper("two", Some(2.0))]);
        for figure in [lines, bars] {
            let path = scratch.path().join("x.svg");
            draw(&figure, &path).unwrap();
            let text = std::fs::read_to_string(path).unwrap();
            assert!(text.contains("A title") && text.contains("two (paper)"), "{text}");
        }
    }
}
