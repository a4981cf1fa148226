//! Text tables: columns as wide as their widest cell, numbers to the right.

/// On which side of its column a cell stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Lays out `rows` below `header`; cells beyond the header are dropped.
pub fn render(header: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let width = |column: usize, title: &str| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
            .max(title.chars().count())
    };
    let widths: Vec<usize> = header.iter().enumerate().map(|(i, (title, _))| width(i, title)).collect();
    let titles: Vec<String> = header.iter().map(|(title, _)| (*title).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = String::new();
        for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(header) {
            match align {
                Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                Align::Right => line.push_str(&format!("{cell:>width$}  ")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "5".to_owned()], vec!["long".to_owned(), "1234".to_owned()]];
        let text = render(&[("NAME", Align::Left), ("N", Align::Right)], &rows);
        assert_eq!(text, "NAME     N\na        5\nlong  1234\n");
    }
}
