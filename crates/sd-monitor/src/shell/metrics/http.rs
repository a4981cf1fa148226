//! As much of HTTP/1.0 (RFC 1945) as a server of one page needs.

/// A request that is longer is nobody's.
pub(super) const REQUEST_MAX: usize = 8 << 10;

/// What OpenMetrics text is called.
const PAGE_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a request comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// It has not ended.
    More,
    /// The page, or only its head.
    Page { has_body: bool },
    /// Another answer, by its status.
    Other(u16),
}

/// What has been asked so far. The head alone is read: who asks for a page sends nothing behind it.
pub(super) fn parse(bytes: &[u8]) -> Asked {
    let has = |end: &[u8]| bytes.windows(end.len()).any(|window| window == end);
    if !has(b"\r\n\r\n") && !has(b"\n\n") {
        return if bytes.len() >= REQUEST_MAX { Asked::Other(400) } else { Asked::More };
    }
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.trim_ascii_end().split(|byte| *byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let is_http = version.is_some_and(|version| version.starts_with(b"HTTP/1.")) && words.next().is_none();
    let path = target.and_then(|target| target.split(|byte| *byte == b'?').next());
    match (method, path) {
        _ if !is_http => Asked::Other(400),
        (Some(b"GET"), Some(b"/metrics")) => Asked::Page { has_body: true },
        (Some(b"HEAD"), Some(b"/metrics")) => Asked::Page { has_body: false },
        (Some(b"GET" | b"HEAD"), _) => Asked::Other(404),
        _ => Asked::Other(405),
    }
}

/// The page.
pub(super) fn page(text: &str, has_body: bool) -> Vec<u8> {
    let head = head(200, PAGE_TYPE, text.len());
    format!("{head}{}", if has_body { text } else { "" }).into_bytes()
}

/// An answer that says why there is no page.
pub(super) fn refusal(status: u16) -> Vec<u8> {
    let text = format!("{}\n", reason(status));
    format!("{}{text}", head(status, "text/plain; charset=utf-8", text.len())).into_bytes()
}

fn head(status: u16, kind: &str, len: usize) -> String {
    let reason = reason(status);
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.0 {status} {reason}\r\n{allow}Content-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    )
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        503 => "Service Unavailable",
        _ => "Bad Request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let page = Asked::Page { has_body: true };
        for (text, asked) in [
            ("", Asked::More),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", Asked::More),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", page),
            ("GET /metrics HTTP/1.0\n\n", page),
            ("GET /metrics?a=b HTTP/1.1\r\n\r\n", page),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Asked::Page { has_body: false }),
            ("GET / HTTP/1.1\r\n\r\n", Asked::Other(404)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Asked::Other(405)),
            ("GET /metrics\r\n\r\n", Asked::Other(400)),
            ("GET /metrics HTTP/1.1 x\r\n\r\n", Asked::Other(400)),
            ("\u{1}\u{2}\n\n", Asked::Other(400)),
        ] {
            assert_eq!(parse(text.as_bytes()), asked, "{text:?}");
        }
        assert_eq!(parse(&[b'x'; REQUEST_MAX]), Asked::Other(400));
    }

    #[test]
    fn answers_say_how_long_they_are() {
        let text = String::from_utf8(page("abc\n", true)).unwrap();
        assert!(text.contains("\r\nContent-Length: 4\r\n") && text.ends_with("\r\n\r\nabc\n"), "{text}");
        assert!(String::from_utf8(page("abc\n", false)).unwrap().ends_with("\r\n\r\n"));
        assert!(refusal(405).starts_with(b"HTTP/1.0 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n"));
    }
}
