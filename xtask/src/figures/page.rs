//! One page that shows all figures: no script, nothing from elsewhere.

use super::chart::short;
use super::data::{Figure, Origin};
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2.5em}svg,img{max-width:100%}pre{white-space:pre-wrap}\
table{border-collapse:collapse;font-size:13px}td,th{padding:2px 9px;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}.note{color:#555;font-size:13px}";

/// The page; pictures are files beside it.
pub(crate) fn html(machine: &str, heading: &str, figures: &[Figure]) -> String {
    let mut text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>SocksDirect: figures</title>\
         <style>{STYLE}</style>\n<h1>SocksDirect: the paper's figures on this machine</h1>\n<pre>{}</pre>\n<p>{}</p>\n<ul>\n",
        escape(machine),
        escape(heading)
    );
    for figure in figures {
        let _ = writeln!(text, "<li><a href=\"#{0}\">{1}</a></li>", figure.id, escape(figure.title));
    }
    text.push_str("</ul>\n");
    for figure in figures {
        let _ = writeln!(
            text,
            "<h2 id=\"{0}\">{1}</h2>\n<img src=\"{0}.svg\" alt=\"{1}\">\n<p><a href=\"{0}.json\">{0}.json</a></p>",
            figure.id,
            escape(figure.title)
        );
        for note in &figure.notes {
            let _ = writeln!(text, "<p class=\"note\">{}</p>", escape(note));
        }
        table(&mut text, figure);
    }
    text.push_str("</html>\n");
    text
}

/// Every value as text: a row for each place on the x axis, a column for each series.
fn table(text: &mut String, figure: &Figure) {
    let mut places: Vec<f64> = figure.series.iter().flat_map(|s| s.points.iter().map(|(x, _)| *x)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let _ = write!(text, "<table><tr><th>{}</th>", escape(&figure.x.label));
    for series in &figure.series {
        let paper = if series.origin == Origin::Paper { " (paper)" } else { "" };
        let _ = write!(text, "<th>{}{paper}</th>", escape(&series.name));
    }
    text.push_str("</tr>\n");
    for place in places {
        let name = figure.categories.get(place as usize).map_or_else(|| short(place), |name| escape(name));
        let _ = write!(text, "<tr><td>{name}</td>");
        for series in &figure.series {
            let value = series.points.iter().find(|(x, _)| *x == place);
            let _ = write!(text, "<td>{}</td>", value.map_or_else(String::new, |(_, y)| short(*y)));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
