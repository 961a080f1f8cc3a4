//! Checks that openapi.json matches the service: paths, parameters, fields.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_serve::{
    AddProcess, AddThread, ChangeProfiler, ChangeThread, CleanRequest, KINDS, NewProfiler,
    NewProgram, OPENAPI, ROUTES, ShownProfiler, ShownProgram, ShownSample, ShownThread, SourceName,
    Totals, parameters,
};
use serde::Serialize;
use serde_json::{Value, json};

fn described() -> Value {
    serde_json::from_str(OPENAPI).expect("JSON")
}

fn names(object: &Value) -> BTreeSet<String> {
    let object = object.as_object().expect("an object");
    object.keys().cloned().collect()
}

#[test]
fn each_route_is_described_and_each_description_is_a_route() {
    let api = described();
    let mut told = BTreeSet::new();
    for (path, methods) in api["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let id = operation["operationId"]
                .as_str()
                .expect("a name")
                .to_owned();
            told.insert((method.to_uppercase(), path.clone(), id));
        }
    }
    let routes = ROUTES.iter().map(|route| {
        let name = format!("{:?}", route.operation);
        let name = name[..1].to_lowercase() + &name[1..];
        (route.method.to_owned(), route.path.to_owned(), name)
    });
    assert_eq!(told, routes.collect());
}

#[test]
fn parameters_of_each_route_are_described() {
    let api = described();
    for route in ROUTES {
        let operation = &api["paths"][route.path][route.method.to_lowercase()];
        let told = operation["parameters"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let by = |place: &str| -> BTreeSet<String> {
            let there = told.iter().filter(|p| p["in"] == place);
            there
                .map(|p| p["name"].as_str().expect("a name").to_owned())
                .collect()
        };
        let in_path = route
            .path
            .split('/')
            .filter_map(|part| part.strip_prefix('{'));
        let in_path = in_path.map(|part| part.trim_end_matches('}').to_owned());
        assert_eq!(by("path"), in_path.collect(), "{}", route.path);
        let known = parameters(route.operation)
            .iter()
            .map(|name| (*name).to_owned());
        assert_eq!(by("query"), known.collect(), "{}", route.path);
    }
}

/// Fields as the service writes them, and as openapi.json describes them.
fn check(schema: &str, written: &impl Serialize) {
    let api = described();
    let schema = &api["components"]["schemas"][schema];
    let written = serde_json::to_value(written).expect("JSON");
    assert_eq!(names(&schema["properties"]), names(&written));
    if let Some(required) = schema["required"].as_array() {
        assert_eq!(
            required.len(),
            names(&written).len(),
            "what is written is always there"
        );
    }
}

#[test]
fn fields_of_each_object_are_described() {
    let program = NewProgram {
        command: vec![String::new()],
        folder: Some("/".into()),
        environment: Some(BTreeMap::new()),
        output: Some("/".into()),
    };
    let new = NewProfiler {
        program: Some(program.clone()),
        source: Some(SourceName::Clock),
        event: Some(String::new()),
        period: Some(1),
        buffer: Some(1),
        latency_ms: Some(1),
        overhead: Some(0.5),
        ..NewProfiler::default()
    };
    check("NewProfiler", &new);
    let described = &described()["components"]["schemas"]["NewProgram"];
    let written = serde_json::to_value(&program).expect("JSON");
    assert_eq!(names(&described["properties"]), names(&written));
    assert_eq!(described["required"], json!(["command"]));
    let change = ChangeProfiler {
        on: Some(true),
        period: Some(1),
        buffer: Some(1),
    };
    check("ChangeProfiler", &change);
    let change = ChangeThread {
        started: Some(true),
        period: Some(1),
    };
    check("ChangeThread", &change);
    check("AddThread", &AddThread { tid: 1 });
    check("AddProcess", &AddProcess { pid: 1 });
    check("Cleaning", &CleanRequest::default());
    check("Profiler", &ShownProfiler::default());
    check("Program", &ShownProgram::default());
    check("Thread", &ShownThread::default());
    check("Sample", &ShownSample::default());
    check("Totals", &Totals::default());
}

#[test]
fn each_word_of_a_refusal_is_described() {
    let api = described();
    let error = &api["components"]["schemas"]["Error"]["properties"]["error"];
    assert_eq!(error["properties"]["kind"]["enum"], json!(KINDS));
}
