//! The report as one self-contained HTML file: data, style and front end.
//!
//! The data is JSON: the [`Summary`] as with `--json`, the sentences of the overview, and further
//! results. It cannot be interpreted as HTML, because it does not contain `<` and the front end
//! inserts every name as text. The front end comes from `web/` and is embedded when memgauge is
//! built.

use memgauge_analyze::Summary;
use serde::Serialize;
use serde_json::Value;

use crate::causes::Statement;
use crate::fleet::FleetOverview;
use crate::overview;
use crate::sections::what_if_cautions;
use crate::style::{Style, is_direction};

include!(concat!(env!("OUT_DIR"), "/front_end.rs"));

/// Version of the page's data. The embedded front end reads only this one.
const PAGE_VERSION: u32 = 2;

/// Contents of a page. At least one of the kinds should be present.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Page<'a> {
    /// Heading: a command or a recording.
    pub title: String,
    /// Results of a recording.
    pub summary: Option<&'a Summary>,
    /// Miss-rate curves in the JSON form of `docs/mrc.md`, with the memories to mark.
    pub curves: Vec<Value>,
    /// Memory of running processes in the JSON form of `docs/mrc.md`.
    pub memory: Option<Value>,
    /// Many recordings.
    pub fleet: Option<FleetOverview>,
    /// Where the page can request parts of the recording, if a server shows it.
    pub served: Option<Served>,
}

/// Access to parts of the recording.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    /// Token that each request must carry.
    pub token: String,
    /// True while the recording is being written.
    pub is_growing: bool,
    /// The recording's place in the dataset that is served; `None` if it is served alone.
    pub in_dataset: Option<InDataset>,
}

/// A recording of a dataset.
#[derive(Clone, Debug, Serialize)]
pub struct InDataset {
    /// Identifies the recording.
    pub recording: String,
    /// Its service.
    pub service: String,
    /// The dataset as the user named it.
    pub dataset: String,
}

#[derive(Serialize)]
struct Data<'a> {
    page_version: u32,
    memgauge: &'static str,
    overview: Vec<Statement>,
    sampling_notes: Vec<String>,
    what_if_cautions: Vec<String>,
    #[serde(flatten)]
    page: &'a Page<'a>,
}

/// Message of a memgauge that was built without the front end.
pub const NO_FRONT_END: &str = "failed to write a page: this memgauge was built without the front \
     end: install esbuild and build it again with `make web build`";

impl Page<'_> {
    /// The page's data as JSON of one line.
    pub fn data(&self) -> String {
        let style = Style {
            width: usize::MAX,
            line: usize::MAX,
            colour: false,
            unicode: true,
            rows: Style::ROWS,
        };
        let run = self
            .summary
            .map(|summary| overview::of_run(summary, &style));
        let curves = self.curves.iter().filter_map(overview::of_curve);
        let memory = self.memory.iter().flat_map(overview::of_memory);
        let data = Data {
            page_version: PAGE_VERSION,
            memgauge: env!("CARGO_PKG_VERSION"),
            overview: run
                .into_iter()
                .flatten()
                .chain(curves)
                .chain(memory)
                .collect(),
            sampling_notes: self.summary.map(crate::sampling_notes).unwrap_or_default(),
            what_if_cautions: self.summary.map(what_if_cautions).unwrap_or_default(),
            page: self,
        };
        serde_json::to_string(&data)
            .expect("SANITY: a page has string keys and writing to memory cannot fail")
    }

    /// The page. `None` if memgauge was built without the front end.
    pub fn html(&self) -> Option<String> {
        FRONT_END.map(|front_end| assembled(front_end, &self.title, &self.data()))
    }
}

/// True if memgauge was built with the front end.
pub fn has_front_end() -> bool {
    FRONT_END.is_some()
}

fn assembled((script, style): (&str, &str), title: &str, data: &str) -> String {
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                  img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'";
    let title = text(title);
    // `<` would end the element. The escape is valid JSON for the same character.
    let data = data.replace('<', "\\u003c");
    let script = script.replace("</script", "<\\/script");
    let style = style.replace("</style", "<\\/style");
    [
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
        "<meta http-equiv=\"Content-Security-Policy\" content=\"",
        policy,
        "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
        "<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" ",
        "content=\"no-referrer\">\n<link rel=\"icon\" href=\"data:,\">\n<title>",
        &title,
        " – memgauge</title>\n<style>\n",
        &style,
        "</style>\n</head>\n<body>\n<noscript>This report draws itself with JavaScript. ",
        "<code>memgauge report</code> shows the same as text.</noscript>\n",
        "<script type=\"application/json\" id=\"data\">",
        &data,
        "</script>\n<script>\n",
        &script,
        "</script>\n</body>\n</html>\n",
    ]
    .concat()
}

/// Escapes text for HTML and removes characters that change the reading direction.
fn text(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        match c {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            c if c.is_control() || is_direction(c) => text.push('\u{fffd}'),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    const FAKE: (&str, &str) = ("let a = '</script>';", "body{}");

    fn page(summary: &Summary) -> String {
        let page = Page {
            title: "a & <b>".to_owned(),
            summary: Some(summary),
            ..Page::default()
        };
        assembled(FAKE, &page.title, &page.data())
    }

    fn data_of(page: &str) -> Value {
        let start = "id=\"data\">";
        let at = page.find(start).expect("data") + start.len();
        let end = page[at..].find("</script>").expect("its end") + at;
        serde_json::from_str(&page[at..end]).expect("JSON")
    }

    #[test]
    fn data_is_the_summary_as_json_has_it() {
        for summary in [fixture::full(), fixture::killed(), fixture::empty()] {
            let data = data_of(&page(&summary));
            let mut expected: Value = serde_json::from_str(&crate::json(&summary)).unwrap();
            // The overview has them, too.
            expected.as_object_mut().unwrap().remove("warnings");
            assert_eq!(data["summary"], expected);
        }
    }

    #[test]
    fn names_cannot_end_the_data_or_become_elements() {
        let mut summary = fixture::full();
        let evil = "</script><script>alert(1)</script><!--\u{2028}\u{202e}\"'`";
        summary.hot.functions.rows[0].function = evil.to_owned();
        summary.recording.command = vec![evil.to_owned()];
        let page = page(&summary);
        assert_eq!(page.matches("</script").count(), 2, "data and front end");
        assert!(!page.contains("<!--") && !page.contains("<script>alert"));
        let data = data_of(&page);
        assert_eq!(
            data["summary"]["hot"]["functions"]["rows"][0]["function"],
            evil
        );
    }

    #[test]
    fn the_title_is_text() {
        let page = page(&fixture::empty());
        assert!(page.contains("<title>a &amp; &lt;b&gt; – memgauge</title>"));
        assert_eq!(text("a\u{202e}b\n"), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn overview_of_the_fixtures() {
        let said = |summary: &Summary| {
            let page = Page {
                summary: Some(summary),
                ..Page::default()
            };
            let data: Value = serde_json::from_str(&page.data()).unwrap();
            let statements = data["overview"].as_array().unwrap().clone();
            let line = |s: &Value| {
                let part = |name: &str| s[name].as_str().unwrap().to_owned();
                [part("kind"), part("text"), part("rule"), part("next")].join(" | ")
            };
            statements.iter().map(line).collect::<Vec<_>>().join("\n")
        };
        insta::assert_snapshot!(said(&fixture::full()));
    }
}
