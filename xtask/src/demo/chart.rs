//! The chart of the demo: one SVG file, written as text.

use harness::report::thousands;
use std::fmt::Write;

const WIDTH: usize = 860;
const LABEL_RIGHT: usize = 210;
const BAR_LEFT: usize = 222;
const BAR_WIDTH_MAX: f64 = 430.0;
const BAR_HEIGHT: usize = 16;
const ROW_HEIGHT: usize = 52;
const TOP: usize = 92;
const GREY: &str = "#a8b0ba";
const GREEN: &str = "#0f8b6d";

/// One benchmark: requests per second of the kernel, and of SocksDirect.
pub(crate) struct Bars<'a> {
    pub(crate) label: &'a str,
    pub(crate) connections: usize,
    pub(crate) rates: [f64; 2],
}

/// Horizontal bars of requests per second, the kernel above SocksDirect, with the gain at the right, and the command that makes them below.
pub(crate) fn svg(title: &str, rows: &[Bars<'_>], command: &str) -> String {
    let height = TOP + rows.len() * ROW_HEIGHT + 36;
    let most = rows.iter().flat_map(|row| row.rates).fold(1.0, f64::max);
    let mut text = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="Requests per second over the kernel and over SocksDirect">
<style>text{{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:13px;fill:#28303a}}
.title{{font-size:18px;font-weight:600}}.quiet{{fill:#69727d;font-size:12px}}.gain{{font-size:15px;font-weight:600;fill:{GREEN}}}</style>
<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#e3e6ea"/>
<text class="title" x="24" y="36">{title}</text>
<rect x="24" y="54" width="12" height="12" rx="2" fill="{GREY}"/><text class="quiet" x="42" y="64">kernel TCP</text>
<rect x="132" y="54" width="12" height="12" rx="2" fill="{GREEN}"/><text class="quiet" x="150" y="64">SocksDirect</text>
<text class="quiet" x="{right}" y="64" text-anchor="end">gain</text>
"##,
        right = WIDTH - 24
    );
    for (index, row) in rows.iter().enumerate() {
        draw_row(&mut text, row, TOP + index * ROW_HEIGHT, most);
    }
    let foot = height - 16;
    let _ = writeln!(
        text,
        r#"<text class="quiet" x="24" y="{foot}">Longer is better. Made by: {command}</text>
</svg>"#
    );
    text
}

fn draw_row(text: &mut String, row: &Bars<'_>, top: usize, most: f64) {
    let connections = row.connections;
    let plural = if connections == 1 { "connection" } else { "connections" };
    let middle = top + BAR_HEIGHT;
    let _ = writeln!(
        text,
        r#"<text x="{LABEL_RIGHT}" y="{}" text-anchor="end">{}</text>
<text class="quiet" x="{LABEL_RIGHT}" y="{}" text-anchor="end">{connections} {plural}</text>
<text class="gain" x="{}" y="{}" text-anchor="end">{:.1} ×</text>"#,
        middle - 3,
        row.label,
        middle + 13,
        WIDTH - 24,
        middle + 6,
        row.rates[1] / row.rates[0]
    );
    draw_bar(text, top, row.rates[0], most, GREY);
    draw_bar(text, top + BAR_HEIGHT + 3, row.rates[1], most, GREEN);
}

fn draw_bar(text: &mut String, top: usize, value: f64, most: f64, colour: &str) {
    let width = (value / most * BAR_WIDTH_MAX).max(1.0);
    let _ = writeln!(
        text,
        r#"<rect x="{BAR_LEFT}" y="{top}" width="{width:.1}" height="{BAR_HEIGHT}" rx="2" fill="{colour}"/>
<text class="quiet" x="{:.1}" y="{}">{}</text>"#,
        BAR_LEFT as f64 + width + 7.0,
        top + 12,
        thousands(value)
    );
}
