//! Line lengths, and documentation that says too little.

use std::collections::BTreeMap;

use crate::{
    files::{self, File, root},
    limits::{
        COLUMNS, GENERATED, LONG_MARKDOWN_LINES, LONG_RUST_LINES, SHORT_DOC_WORDS, SHORT_DOCS,
    },
};

/// One line that breaks a rule: its number, counted from 1, and what is wrong with it.
type Finding = (usize, String);

#[test]
fn rust_lines_fit() {
    check("rs", "long Rust lines", LONG_RUST_LINES, long_rust_lines);
}

#[test]
fn markdown_lines_fit() {
    check(
        "md",
        "long Markdown lines",
        LONG_MARKDOWN_LINES,
        long_markdown_lines,
    );
}

#[test]
fn documentation_says_something() {
    check(
        "rs",
        "short paragraphs of documentation",
        SHORT_DOCS,
        short_docs,
    );
}

/// Applies `rule` to every file with `extension`, prints what it finds, and fails when that is more
/// than `limit`.
fn check(extension: &str, what: &str, limit: usize, rule: impl Fn(&str) -> Vec<Finding>) {
    let mut by_directory: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = 0;
    let files = files::with_extension(root(), extension).into_iter();
    for File { path, text } in files.filter(|file| !file.path.starts_with(GENERATED)) {
        let findings = rule(&text);
        for (line, message) in &findings {
            println!("{}:{line}: {message}", path.display());
        }
        count += findings.len();
        let directory = path.parent().unwrap_or(&path).display().to_string();
        *by_directory.entry(directory).or_default() += findings.len();
    }
    for (directory, count) in by_directory.iter().filter(|(_, count)| **count > 0) {
        println!("{count:6} in {directory}/");
    }
    println!("{count} {what}; the limit is {limit} (xtask/tests/workspace/limits.rs)");
    assert!(
        count <= limit,
        "{count} {what} are more than {limit}; they are listed above"
    );
}

fn columns(line: &str) -> usize {
    line.chars().count()
}

fn too_long(line: &str) -> String {
    format!("{} columns", columns(line))
}

fn long_rust_lines(text: &str) -> Vec<Finding> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| columns(line) > COLUMNS)
        // A URL cannot be wrapped.
        .filter(|(_, line)| !(line.contains("//") && line.contains("://")))
        .map(|(index, line)| (index + 1, too_long(line)))
        .collect()
}

/// Finds the long lines outside tables, code blocks (fenced, or indented by four spaces after an
/// empty line) and lines with a URL.
fn long_markdown_lines(text: &str) -> Vec<Finding> {
    let mut fenced = false;
    let mut indented = false;
    let mut after_empty = true;
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if start.starts_with("```") {
            fenced = !fenced;
        }
        indented = line.starts_with("    ") && (after_empty || indented);
        after_empty = start.is_empty();
        let code = fenced || indented;
        let wrappable = !code && !start.starts_with('|') && !line.contains("://");
        if wrappable && columns(line) > COLUMNS {
            findings.push((index + 1, too_long(line)));
        }
    }
    findings
}

/// Finds the paragraphs of doc comments that have at most [`SHORT_DOC_WORDS`] words. Headings and
/// code blocks are no paragraphs; the last line of a longer paragraph may be short.
fn short_docs(text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut paragraph: Option<(usize, String)> = None;
    let mut in_code = false;
    // The empty line after the last one ends the last paragraph.
    for (index, line) in text.lines().chain([""]).enumerate() {
        let doc = doc_text(line);
        let fence = doc.is_some_and(|doc| doc.starts_with("```"));
        let continues = doc.is_some_and(|doc| !doc.is_empty() && !doc.starts_with('#'));
        if continues && !fence && !in_code {
            let doc = doc.unwrap_or_default();
            let (_, words) = paragraph.get_or_insert_with(|| (index + 1, String::new()));
            words.push(' ');
            words.push_str(doc);
        } else if let Some((line, words)) = paragraph.take()
            && words.split_whitespace().count() <= SHORT_DOC_WORDS
        {
            findings.push((line, words.trim().to_owned()));
        }
        // A comment that ends closes its code block, whatever it says.
        in_code = doc.is_some() && (in_code != fence);
    }
    findings
}

/// The text of a line that is a doc comment.
fn doc_text(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///")
        .filter(|rest| !rest.starts_with('/'))
        .or_else(|| line.strip_prefix("//!"))
        .map(str::trim)
}

#[test]
fn a_url_a_table_and_a_code_block_may_be_wide() {
    let wide = "word ".repeat(30);
    let markdown = format!(
        "{wide}\n| {wide} |\n<https://example.org> {wide}\n```\n{wide}\n```\n{wide}\n    {wide}\n\
         \n    {wide}\n    {wide}\n"
    );
    let lines: Vec<_> = long_markdown_lines(&markdown)
        .into_iter()
        .map(|(line, _)| line)
        .collect();
    assert_eq!(lines, [1, 7, 8]);
    let rust = format!("// {wide}\n// https://example.org/{wide}\nlet short = 1;\n");
    assert_eq!(
        long_rust_lines(&rust),
        [(1, too_long(&format!("// {wide}")))]
    );
}

#[test]
fn only_whole_paragraphs_can_be_short() {
    let source = [
        "/// Bytes.",
        "pub a: u32,",
        "/// A paragraph that goes on for long enough to be wrapped, and ends",
        "/// with few words.",
        "///",
        "/// # Errors",
        "///",
        "/// Always fails.",
        "//// Not documentation.",
        "pub b: u32,",
        "/// ```",
        "/// let x = 1;",
        "/// ```",
        "pub c: u32,",
    ];
    assert_eq!(
        short_docs(&source.join("\n")),
        [(1, "Bytes.".to_owned()), (8, "Always fails.".to_owned())]
    );
}
