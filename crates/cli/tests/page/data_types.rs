//! The types that the front end declares for its data (`web/src/data.ts`) against data of real
//! recordings, checked by TypeScript's compiler.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::fleet::Indexed;
use super::harness::{Recorded, needs};
use super::served::Served;
use super::{FIXTURES, fixture, has_front_end, page_of};

/// Long arrays repeat their types, and the compiler takes seconds for thousands of literals.
const KEPT: usize = 8;

/// Two threads that share a line, an array of structures on the heap, and a marked function.
const PROGRAM: &str = r"
#include <pthread.h>
#include <stdlib.h>
struct pair { long hot; long cold[7]; };
static struct { volatile long hits, misses; } counters __attribute__((aligned(64)));
static void *hit(void *unused) { for (int i = 0; i < 100000; i++) counters.hits++; return 0; }
__attribute__((noinline)) static long sum(struct pair *pairs, long n) {
    long all = 0;
    for (long i = 0; i < n; i++) all += pairs[i * 7919 % n].hot;
    return all;
}
int main(void) {
    pthread_t thread;
    struct pair *pairs = calloc(20000, sizeof *pairs);
    pthread_create(&thread, 0, hit, 0);
    for (int i = 0; i < 100000; i++) counters.misses++;
    pthread_join(thread, 0);
    return sum(pairs, 20000) == 1;
}
";

fn program_in(folder: &Path) -> String {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&source, PROGRAM).expect("the source can be written");
    let status = Command::new("gcc")
        .args(["-O1", "-g", "-pthread", "-o"])
        .args([&program, &source])
        .status();
    assert!(status.expect("gcc runs").success());
    program
        .to_str()
        .expect("temporary paths are text")
        .to_owned()
}

fn data_of(html: &str) -> Value {
    let (_, rest) = html.split_once("id=\"data\">").expect("a page has data");
    let (data, _) = rest.split_once("</script>").expect("its end");
    serde_json::from_str(data).expect("data is JSON")
}

fn shortened(data: &mut Value) {
    match data {
        Value::Array(items) => {
            items.truncate(KEPT);
            items.iter_mut().for_each(shortened);
        }
        Value::Object(fields) => fields.values_mut().for_each(shortened),
        _ => {}
    }
}

/// Returns the compiler's messages about a module that gives `pages` the type `Data`.
fn complaints(pages: &[(String, Value)]) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
    let web = web.canonicalize().expect("the front end's sources");
    let declared = web.join("src/data");
    let mut module = format!(
        "import type {{ Data }} from {declared:?};\n\
         type Frozen<T> = T extends (infer E)[] ? readonly Frozen<E>[] :\n\
         \x20   T extends object ? {{ readonly [K in keyof T]: Frozen<T[K]> }} : T;\n"
    );
    for (n, (name, data)) in pages.iter().enumerate() {
        let mut data = data.clone();
        shortened(&mut data);
        // A constant may have more fields than its type: the front end reads only some.
        let constants = format!(
            "// {name}\nconst p{n} = {data} as const;\nexport const t{n}: Frozen<Data> = p{n};\n"
        );
        write!(module, "{constants}").expect("text grows");
    }
    let settings = r#"{ "extends": "WEB/tsconfig.json", "include": ["*.ts"] }"#;
    let settings = settings.replace("WEB", &web.to_string_lossy());
    for (file, text) in [("pages.ts", module), ("tsconfig.json", settings)] {
        std::fs::write(folder.path().join(file), text).expect("temporary files can be written");
    }
    let mut compiler = Command::new("tsc");
    let checked = compiler.arg("-p").arg(folder.path()).output();
    let checked = checked.expect("tsc runs");
    String::from_utf8_lossy(&checked.stdout).into_owned()
}

#[test]
fn the_front_end_declares_the_data_that_reports_have() {
    if !has_front_end() || !needs(&["gcc", "tsc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = program_in(folder.path());
    let recorded = Recorded::new(&["--machine", "zen4", "--what-if", "llc=2x"], &[program]);
    let mut pages: Vec<(String, Value)> = FIXTURES
        .iter()
        .map(|name| ((*name).to_owned(), data_of(&page_of(&fixture(name)))))
        .collect();
    let data = data_of(&page_of(&recorded.path()));
    for section in ["data", "heap", "sharing", "types", "what_if", "time"] {
        assert!(
            data["summary"][section].is_object() || data["summary"][section].is_array(),
            "{section}"
        );
    }
    pages.push(("a program with threads".to_owned(), data.clone()));
    let indexed = Indexed::new("types", 1);
    let served = Served::of(&indexed.dataset());
    let fleet = served.data("");
    let recording = &fleet["fleet"]["recordings"][0]["recording"];
    let recording = served.data(&format!(
        "&recording={}",
        recording.as_str().expect("an ID")
    ));
    assert!(recording["served"]["in_dataset"].is_object());
    pages.push(("a dataset".to_owned(), fleet));
    pages.push(("a recording of a dataset".to_owned(), recording));
    assert_eq!(complaints(&pages), "");

    // A number that became a text is found.
    let mut changed = data;
    changed["summary"]["heap"]["allocations"] = "many".into();
    let found = complaints(&[("changed".to_owned(), changed)]);
    assert!(found.contains("allocations"), "{found}");
}
