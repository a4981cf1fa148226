//! The difference of two transcripts, as it is shown.

/// Lines of a difference that are shown.
const EXCERPT_LINES: usize = 16;

/// The difference of two transcripts, with a line of context, cut after some lines.
pub(super) fn excerpt(expected: &str, seen: &str) -> Vec<String> {
    let lines = difference(&expected.lines().collect::<Vec<_>>(), &seen.lines().collect::<Vec<_>>());
    let changed = |index: usize| lines.get(index).is_some_and(|(sign, _)| *sign != ' ');
    let near = |index: usize| changed(index) || changed(index + 1) || (index > 0 && changed(index - 1));
    let kept = (0..lines.len()).filter(|index| near(*index));
    let mut shown: Vec<String> =
        kept.map(|index| format!("      {} {}", lines[index].0, lines[index].1)).collect();
    if shown.len() > EXCERPT_LINES {
        let more = shown.len() - EXCERPT_LINES;
        shown.truncate(EXCERPT_LINES);
        shown.push(format!("      ... and {more} lines more"));
    }
    shown
}

/// A line-by-line difference by the longest common subsequence; transcripts are short.
fn difference<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(char, &'a str)> {
    let width = new.len() + 1;
    let mut common = vec![0usize; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = match old[i] == new[j] {
                true => common[(i + 1) * width + j + 1] + 1,
                false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j, mut result) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            result.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len()
            || (i < old.len() && common[(i + 1) * width + j] >= common[i * width + j + 1])
        {
            result.push(('-', old[i]));
            i += 1;
        } else {
            result.push(('+', new[j]));
            j += 1;
        }
    }
    result
}
