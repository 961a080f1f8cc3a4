//! Shortens names of functions, which can fill a paragraph in C++ and Rust.

use memgauge_analyze::Caller;

/// Maximum length of a name that is shown in full.
const SHORT: usize = 40;

/// Removes the arguments of templates and of the call from a long name: `std::map<>::find()`.
/// Operators such as `operator<` keep theirs.
pub(crate) fn readable(name: &str) -> String {
    match name.chars().count() > SHORT {
        true => without_arguments(name),
        false => name.to_owned(),
    }
}

/// Minimum share to name a single function or piece of data in a sentence.
pub(crate) const NAMED_SHARE: f64 = 0.2;

/// Removes the type of the result from a method's name as a JVM writes it for perf:
/// `java.lang.String java.lang.Object.toString()`.
fn without_java_result(name: &str) -> &str {
    let is_java = |text: &str| {
        let is_name = |c: char| c.is_alphanumeric() || "._$[]<>".contains(c);
        !text.is_empty() && text.chars().all(is_name)
    };
    let method = name.split_once('(').map(|(head, _)| head);
    let parts = method.and_then(|head| head.split_once(' '));
    match parts {
        Some((result, method)) if is_java(result) && is_java(method) && method.contains('.') => {
            &name[result.len() + 1..]
        }
        _ => name,
    }
}

/// As [`readable`], for names of any length. Used in sentences.
///
/// Parentheses after a space are not arguments: `main at a.c:5 (malloc)`, `(anonymous namespace)`.
/// Parentheses after a dot are a receiver in Go: `main.(*Node).insert`.
pub(crate) fn without_arguments(name: &str) -> String {
    // Brackets of Python are no arguments: `<module> at a.py:3 (Python)`, `<frozen importlib>`.
    if name.contains("operator") || name.ends_with(" (Python)") {
        return name.to_owned();
    }
    let name = without_java_result(name);
    let mut short = String::new();
    let (mut depth, mut kept) = (0, 0);
    let mut before = ' ';
    for (at, c) in name.char_indices() {
        if depth == 0
            && let Some(own) = self_type(&name[at..], before)
        {
            let rest = &name[at + own.bytes..];
            return short + &without_arguments(own.name) + &without_arguments(rest);
        }
        let is_kept = depth == 0 && c == '(' && matches!(before, ' ' | ':' | '.');
        if depth == 0 && kept > 0 && c == ')' {
            kept -= 1;
        } else if (c == ')' || c == '>' && before != '-') && depth > 0 {
            depth -= 1;
        }
        if depth == 0 {
            short.push(c);
        }
        if is_kept {
            kept += 1;
        } else if matches!(c, '<' | '(') {
            depth += 1;
        }
        before = c;
    }
    short
}

/// The type of `<Type as Trait>` or `<impl Trait for Type>` at the start of a piece of a name.
struct SelfType<'a> {
    name: &'a str,
    /// Length of the whole bracket.
    bytes: usize,
}

/// Returns the type of a method if `name` begins with the bracket around this type. `before` is the
/// preceding character.
fn self_type(name: &str, before: char) -> Option<SelfType<'_>> {
    let inner = name
        .strip_prefix('<')
        .filter(|_| matches!(before, ' ' | ':'))?;
    let mut depth = 1;
    let end = inner.char_indices().find_map(|(at, c)| {
        match c {
            '<' => depth += 1,
            // The arrow of a function's type closes nothing.
            '>' if !inner[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })?;
    let bytes = end + 2;
    if !name[bytes..].starts_with("::") {
        return None;
    }
    let inner = &inner[..end];
    let own = match inner.strip_prefix("impl ") {
        // The path before an `impl` is that of its module, so the path of the type is not needed.
        Some(of) => {
            let own = of.rsplit_once(" for ").map_or(of, |(_, own)| own);
            let path = own.split('<').next().unwrap_or(own);
            &own[path.rfind("::").map_or(0, |at| at + 2)..]
        }
        None => inner.rsplit_once(" as ").map(|(own, _)| own)?,
    };
    Some(SelfType {
        name: own.trim_start_matches(['&', '*']),
        bytes,
    })
}

/// A function and the functions that it was inlined into, outermost first: `main > lookups`.
pub(crate) fn chain(function: &str, inlined_into: &[Caller]) -> String {
    let callers = inlined_into.iter().map(|caller| caller.function.as_str());
    let frames = std::iter::once(function).chain(callers);
    let mut frames: Vec<String> = frames.map(readable).collect();
    frames.reverse();
    if let [outer, .., caller, inner] = frames.as_slice()
        && frames.len() > 3
    {
        frames = vec![
            outer.clone(),
            "..".to_owned(),
            caller.clone(),
            inner.clone(),
        ];
    }
    frames.join(" > ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_python_keep_their_brackets() {
        let name = "_call_with_frames_removed at <frozen importlib._bootstrap>:241 (Python)";
        assert_eq!(readable(name), name);
        let name = "<module> at a_script_with_a_long_name.py:3 (Python)";
        assert_eq!(readable(name), name);
    }

    #[test]
    fn arguments_of_long_names_are_left_out() {
        let long = "std::_Hashtable<unsigned long, std::pair<int, int> >::_M_find(int) const";
        assert_eq!(readable(long), "std::_Hashtable<>::_M_find() const");
        assert_eq!(readable("sum(int)"), "sum(int)");
        assert_eq!(without_arguments("sum(int)"), "sum()");
        let go = "main.(*Node).insert";
        assert_eq!(without_arguments(go), go);
        let site = "engine::read(int, char const*) at read.cc:5 (malloc)";
        assert_eq!(
            without_arguments(site),
            "engine::read() at read.cc:5 (malloc)"
        );
        let unnamed = "a::(anonymous namespace)::b(int)";
        assert_eq!(without_arguments(unnamed), "a::(anonymous namespace)::b()");
        let java = "java.lang.Object java.util.HashMap$TreeNode.find(int, java.lang.Object)";
        assert_eq!(without_arguments(java), "java.util.HashMap$TreeNode.find()");
        assert_eq!(
            without_arguments("int a::b.part.0(int)"),
            "int a::b.part.0()"
        );
        let operator = "a::operator<(a const&)";
        assert_eq!(without_arguments(operator), operator);
    }

    #[test]
    fn methods_of_rust_keep_the_name_of_their_type() {
        let short = |name: &str| without_arguments(name);
        assert_eq!(
            short("<search::FindIter<S, T> as core::iter::Iterator>::next"),
            "search::FindIter<>::next"
        );
        assert_eq!(
            short("matrix::<impl core::ops::Mul<&matrix::Matrix<T>> for &matrix::Matrix<T>>::mul"),
            "matrix::Matrix<>::mul"
        );
        assert_eq!(
            short("<a::Map<fn() -> u8> as b::Run>::run::{{closure}} at a.rs:3 (malloc)"),
            "a::Map<>::run::{{closure}} at a.rs:3 (malloc)"
        );
        assert_eq!(short("vec::Vec::<u8>::push"), "vec::Vec::<>::push");
        assert_eq!(short("a::Tree<u8>::find<u16>"), "a::Tree<>::find<>");
    }

    #[test]
    fn a_chain_begins_with_the_outermost_function_and_leaves_out_the_middle() {
        let callers = |names: &[&str]| -> Vec<Caller> {
            let caller = |name: &&str| Caller {
                function: (*name).to_owned(),
                ..Caller::default()
            };
            names.iter().map(caller).collect()
        };
        assert_eq!(
            chain("pick", &callers(&["sum", "main"])),
            "main > sum > pick"
        );
        assert_eq!(
            chain("a", &callers(&["b", "c", "d", "main"])),
            "main > .. > b > a"
        );
    }
}
