//! Which subjects of `tests/posix` call which functions of libc, found in the source.
//!
//! A subject is what `solo(...)` or `pair(...)` names, and calls what its functions call, and those that they call. A
//! call of libc is `libc::name`, or a name that the file declares as foreign. Names are resolved by their last part: in
//! the file itself first, otherwise among what other files of the suite publish. So it may see a call where a variable
//! has a function's name, and sees none that a macro puts together.

use super::source;
use std::collections::{BTreeMap, BTreeSet};

/// File and name.
type Key<'a> = (usize, &'a str);

/// A function, constant or static of the suite.
struct Item {
    name: String,
    is_public: bool,
    body: String,
}

struct File {
    text: String,
    items: Vec<Item>,
}

/// How many subjects call each function that any calls.
pub(crate) fn count<'a>(texts: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let files: Vec<File> = texts.map(read).collect();
    let mut nodes: BTreeMap<Key, Vec<&Item>> = BTreeMap::new();
    let mut public: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, file) in files.iter().enumerate() {
        for item in &file.items {
            nodes.entry((number, &item.name)).or_default().push(item);
            if item.is_public {
                public.entry(&item.name).or_default().push(number);
            }
        }
    }
    let mut counts = BTreeMap::new();
    for (number, file) in files.iter().enumerate() {
        for (body, weight) in subjects(&file.text) {
            let mut walk = Walk {
                files: &files,
                nodes: &nodes,
                public: &public,
                seen: BTreeSet::new(),
                calls: BTreeSet::new(),
            };
            walk.body(number, body);
            for call in walk.calls {
                *counts.entry(call).or_default() += weight;
            }
        }
    }
    counts
}

struct Walk<'a> {
    files: &'a [File],
    nodes: &'a BTreeMap<Key<'a>, Vec<&'a Item>>,
    public: &'a BTreeMap<&'a str, Vec<usize>>,
    seen: BTreeSet<Key<'a>>,
    calls: BTreeSet<String>,
}

impl<'a> Walk<'a> {
    fn body(&mut self, file: usize, body: &'a str) {
        for (at, word) in words(body) {
            let is_foreign = || {
                !self.nodes.contains_key(&(file, word))
                    && self.files[file].text.contains(&format!("fn {word}("))
            };
            if body[..at].ends_with("libc::") || is_foreign() {
                self.calls.insert(word.to_owned());
                continue;
            }
            match self.public.get(word) {
                _ if self.nodes.contains_key(&(file, word)) => self.item((file, word)),
                Some(others) => others.iter().for_each(|other| self.item((*other, word))),
                None => {}
            }
        }
    }

    fn item(&mut self, key: Key<'a>) {
        if self.seen.insert(key) {
            for item in &self.nodes[&key] {
                self.body(key.0, &item.body);
            }
        }
    }
}

fn read(text: &str) -> File {
    let text = source::mask(text);
    let lines: Vec<&str> = text.lines().collect();
    let is_public = |line: usize| lines[line].trim_start().starts_with("pub");
    let mut items = Vec::new();
    for function in source::functions(&text) {
        let first = function.line - 1;
        let body = lines[first..first + function.lines].join("\n");
        items.push(Item { name: function.name, is_public: is_public(first), body });
    }
    for (first, line) in lines.iter().enumerate() {
        let rest = line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        let Some(rest) = rest.strip_prefix("const ").or_else(|| rest.strip_prefix("static ")) else {
            continue;
        };
        let Some((name, _)) = rest.split_once(':') else { continue };
        // The last line is the first that ends the statement and is not indented.
        let is_last = |line: &&str| line.trim_end().ends_with(';') && !line.starts_with(' ');
        let count = lines[first..].iter().take_while(|line| !is_last(line)).count();
        let body = lines[first..lines.len().min(first + count + 1)].join("\n");
        if !body.contains("&[Subject]") {
            items.push(Item { name: name.to_owned(), is_public: is_public(first), body });
        }
    }
    File { text, items }
}

/// What stands between the parentheses of each `solo(...)` and `pair(...)`, and how many subjects that is at least: a
/// macro that makes subjects makes several.
fn subjects(text: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    for (at, word) in words(text).filter(|(_, word)| matches!(*word, "solo" | "pair")) {
        let rest = &text[at + word.len()..];
        if !rest.starts_with('(') || text[..at].ends_with("fn ") {
            continue;
        }
        let mut depth = 0;
        let end = rest.bytes().position(|byte| {
            depth += i32::from(byte == b'(') - i32::from(byte == b')');
            depth == 0
        });
        let inside = &rest[..end.unwrap_or(rest.len())];
        found.push((inside, if inside.contains('$') { 2 } else { 1 }));
    }
    found
}

/// Words of masked code, with their places.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from + text[from..].find(is_letter)?;
        let len = text[start..].find(|letter| !is_letter(letter)).unwrap_or(text.len() - start);
        from = start + len;
        Some((start, &text[start..from]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn through_helpers_and_tables() {
        let sys = "pub(crate) fn recv() { call!(libc::recv(1)) }\nfn hidden() { libc::listen() }\n";
        let one = "pub(crate) const SUBJECTS: &[Subject] = &[\n solo(\"a/b\", first),\n pair(\"a/c\", second, first),\n];\n\
                   extern \"C\" { fn __read(fd: i32); }\n\
                   fn first() { recv(); table(); }\nfn second() { __read(1); hidden(); }\n\
                   const CALLS: &[fn()] = &[\n    || { 1;\n    libc::send() },\n];\nfn table() { CALLS }\n";
        let two =
            "macro_rules! m { () => { solo(concat!(\"x\"), || run($state)) } }\nfn run() { libc::bind() }\n";
        let counts = count([sys, one, two].into_iter());
        let of = |name: &str| counts.get(name).copied().unwrap_or(0);
        assert_eq!((of("recv"), of("send"), of("__read")), (2, 2, 1));
        assert_eq!((of("listen"), of("bind")), (0, 2));
    }
}
