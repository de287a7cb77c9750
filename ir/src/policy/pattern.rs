//! Patterns over names with dots: `encoder.*.norm` and `encoder.**`.

/// True if all of `text` matches: `*` stands for any run of characters without a dot, `**` for any run at all.
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some(star) = pattern.find('*') else { return pattern == text };
    let (head, tail) = pattern.split_at(star);
    let Some(text) = text.strip_prefix(head) else { return false };
    let (any, tail) = match tail.strip_prefix("**") {
        Some(tail) => (true, tail),
        None => (false, &tail[1..]),
    };
    let reach = if any { text.len() } else { text.find('.').unwrap_or(text.len()) };
    (0..=reach).filter(|&at| text.is_char_boundary(at)).any(|at| matches(tail, &text[at..]))
}

/// True if `scope` or a module around it matches.
pub(super) fn matches_module(pattern: &str, scope: &str) -> bool {
    let ends = scope.match_indices('.').map(|(at, _)| at);
    ends.chain([scope.len()]).any(|end| matches(pattern, &scope[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stop_at_dots_and_double_stars_do_not() {
        assert!(matches("a.b", "a.b") && !matches("a.b", "a.bc"));
        assert!(matches("a.*.c", "a.b.c") && !matches("a.*.c", "a.b.b.c"));
        assert!(matches("a.**.c", "a.b.b.c") && matches("**", ""));
        assert!(matches("*/softmax#*", "ü/softmax#0") && !matches("*/softmax", "a/softmax#0"));
    }

    #[test]
    fn a_module_pattern_covers_what_is_inside() {
        assert!(
            matches_module("encoder", "encoder.0.norm")
                && matches_module("encoder.*", "encoder.0.norm")
        );
        assert!(!matches_module("enc", "encoder.0") && !matches_module("norm", "encoder.0.norm"));
        assert!(matches_module("", "") && !matches_module("", "encoder"));
    }
}
