//! Just enough of Rust's lexical structure: code with comments and literals blanked out, functions, test modules.

/// Blanks the contents of comments, strings and characters, keeping every line where it is.
pub(crate) fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match &bytes[at..] {
            [b'/', b'/', ..] => find(bytes, at, b"\n").unwrap_or(bytes.len()),
            [b'/', b'*', ..] => block_comment_end(bytes, at),
            [b'r' | b'b' | b'c', ..] if !follows_name(&out) => match raw_string_end(bytes, at) {
                Some(end) => end,
                None => at,
            },
            [b'"', ..] => string_end(bytes, at + 1),
            [b'\'', ..] => char_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            out.push(bytes[at]);
            at += 1;
            continue;
        }
        out.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes[from..].windows(what.len()).position(|window| window == what).map(|at| from + at)
}

fn follows_name(out: &[u8]) -> bool {
    out.last().is_some_and(|&byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Block comments nest.
fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if bytes[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// `r"..."`, `r#"..."#`, `br##"..."##` and so on; `None` where no raw string begins.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    if matches!(bytes[at], b'b' | b'c') {
        at += 1;
    }
    if bytes.get(at) != Some(&b'r') {
        return None;
    }
    let hashes = bytes[at + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), "#".repeat(hashes).as_bytes()].concat();
    Some(find(bytes, open + 1, &close).map_or(bytes.len(), |at| at + close.len()))
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of a character literal; `None` for a lifetime.
fn char_end(bytes: &[u8], start: usize) -> Option<usize> {
    if bytes.get(start + 1) == Some(&b'\\') {
        return find(bytes, start + 3, b"'").map(|at| at + 1);
    }
    let rest = std::str::from_utf8(&bytes[start + 1..bytes.len().min(start + 6)]).unwrap_or_else(|error| {
        std::str::from_utf8(&bytes[start + 1..start + 1 + error.valid_up_to()]).unwrap_or("")
    });
    let length = rest.chars().next()?.len_utf8();
    (bytes.get(start + 1 + length) == Some(&b'\'')).then_some(start + length + 2)
}

/// A function with a body: its name, first line (from 1) and number of lines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

/// Finds the functions of masked code by counting braces.
pub(crate) fn functions(masked: &str) -> Vec<Function> {
    let bytes = masked.as_bytes();
    let mut found = Vec::new();
    for (at, _) in masked.match_indices("fn ") {
        if at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_') {
            continue;
        }
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let name: Vec<u8> = bytes[at + 3..].iter().copied().take_while(is_name).collect();
        let Some(end) = body_end(bytes, at) else { continue };
        if name.is_empty() {
            continue;
        }
        let line = 1 + masked[..at].matches('\n').count();
        let lines = 1 + masked[at..end].matches('\n').count();
        found.push(Function { name: String::from_utf8_lossy(&name).into_owned(), line, lines });
    }
    found
}

/// The end of the braces that open next, unless a semicolon outside brackets comes first.
fn body_end(bytes: &[u8], from: usize) -> Option<usize> {
    let (mut depth, mut brackets) = (0usize, 0usize);
    for (offset, byte) in bytes[from..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(from + offset);
                }
            }
            b'[' | b'(' if depth == 0 => brackets += 1,
            b']' | b')' if depth == 0 => brackets = brackets.saturating_sub(1),
            b';' if depth == 0 && brackets == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Blanks `#[cfg(test)]` items of masked code.
pub(crate) fn without_tests(masked: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut text = masked.to_owned();
    while let Some(start) = text.find(MARK) {
        let rest = &text.as_bytes()[start..];
        let brace = rest.iter().position(|&byte| byte == b'{' || byte == b';').unwrap_or(rest.len() - 1);
        let end = match rest[brace] {
            b'{' => body_end(text.as_bytes(), start + MARK.len()).unwrap_or(text.len() - 1),
            _ => start + brace,
        };
        let blank: String = text[start..=end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        text.replace_range(start..=end, &blank);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_blank() {
        let text = "let a = \"{\\\"\"; // {\nlet b = '{'; /* { /* */ */ let c = r#\"{\"{\"#; 'a: loop {}";
        let masked = mask(text);
        assert_eq!(masked.matches('{').count(), 1, "{masked}");
        assert_eq!(masked.matches('\n').count(), 1);
        assert!(masked.contains("'a: loop"), "{masked}");
    }

    #[test]
    fn escaped_characters() {
        assert_eq!(mask("'\\'' {").trim(), "{");
        assert_eq!(mask("'\\n' '\"' b'\\\\' 'é' {").replace('b', "").trim(), "{");
    }

    #[test]
    fn function_lengths() {
        let text = "trait T { fn a(&self) -> [u8; 4]; }\npub fn b() {\n    if x {\n    }\n}\nfn c() {}\n";
        let found = functions(&mask(text));
        let b = Function { name: "b".into(), line: 2, lines: 4 };
        let c = Function { name: "c".into(), line: 6, lines: 1 };
        assert_eq!(found, [b, c]);
    }

    #[test]
    fn test_modules_go() {
        let text =
            mask("fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nuse x;\n");
        let names: Vec<String> = functions(&without_tests(&text)).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["a", "c"]);
        assert!(!without_tests(&text).contains("use x"));
    }
}
