//! Maps methods and paths to operations.

use crate::refusal::Refusal;

/// Operations of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Shows version, rights of the client, and limits.
    ShowService,
    /// Returns the OpenAPI description.
    ShowOpenApi,
    /// Lists the profilers that the client may see.
    ListProfilers,
    /// Creates a profiler.
    CreateProfiler,
    /// Shows a profiler.
    ShowProfiler,
    /// Enables or disables a profiler, or changes the period and buffer of threads added later.
    ChangeProfiler,
    /// Deletes a profiler.
    DeleteProfiler,
    /// Shows the counts of all threads.
    ListThreads,
    /// Adds a thread.
    AddThread,
    /// Shows the counts of a thread.
    ShowThread,
    /// Starts or stops a thread, or changes its period.
    ChangeThread,
    /// Deletes a thread from a profiler.
    DeleteThread,
    /// Adds a process.
    AddProcess,
    /// Deletes a process from a profiler.
    DeleteProcess,
    /// Forgets threads that have ended.
    Clean,
    /// Returns a batch of samples.
    ReadSamples,
    /// Streams samples as they are taken.
    StreamSamples,
}

/// A method and path. Parts of the path in braces are numbers.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Method.
    pub method: &'static str,
    /// Path as in the OpenAPI description.
    pub path: &'static str,
    /// The operation.
    pub operation: Operation,
}

const fn route(method: &'static str, path: &'static str, operation: Operation) -> Route {
    Route {
        method,
        path,
        operation,
    }
}

/// All routes.
pub const ROUTES: &[Route] = &[
    route("GET", "/v1", Operation::ShowService),
    route("GET", "/v1/openapi.json", Operation::ShowOpenApi),
    route("GET", "/v1/profilers", Operation::ListProfilers),
    route("POST", "/v1/profilers", Operation::CreateProfiler),
    route("GET", "/v1/profilers/{id}", Operation::ShowProfiler),
    route("PATCH", "/v1/profilers/{id}", Operation::ChangeProfiler),
    route("DELETE", "/v1/profilers/{id}", Operation::DeleteProfiler),
    route("GET", "/v1/profilers/{id}/threads", Operation::ListThreads),
    route("POST", "/v1/profilers/{id}/threads", Operation::AddThread),
    route(
        "GET",
        "/v1/profilers/{id}/threads/{tid}",
        Operation::ShowThread,
    ),
    route(
        "PATCH",
        "/v1/profilers/{id}/threads/{tid}",
        Operation::ChangeThread,
    ),
    route(
        "DELETE",
        "/v1/profilers/{id}/threads/{tid}",
        Operation::DeleteThread,
    ),
    route(
        "POST",
        "/v1/profilers/{id}/processes",
        Operation::AddProcess,
    ),
    route(
        "DELETE",
        "/v1/profilers/{id}/processes/{pid}",
        Operation::DeleteProcess,
    ),
    route("POST", "/v1/profilers/{id}/clean", Operation::Clean),
    route("GET", "/v1/profilers/{id}/samples", Operation::ReadSamples),
    route("GET", "/v1/profilers/{id}/stream", Operation::StreamSamples),
];

/// An operation and the numbers in its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteMatch {
    pub(crate) operation: Operation,
    /// Number of the profiler.
    pub(crate) id: u64,
    /// ID of the thread or process.
    pub(crate) task: u32,
}

/// Returns the operation for a method and path.
pub(crate) fn find(method: &str, path: &str) -> Result<RouteMatch, Refusal> {
    let candidates: Vec<&Route> = ROUTES.iter().filter(|r| matches(r.path, path)).collect();
    let Some(route) = candidates.iter().find(|route| route.method == method) else {
        return Err(not_found(method, path, &candidates));
    };
    let mut found = RouteMatch {
        operation: route.operation,
        id: 0,
        task: 0,
    };
    for (name, value) in route.path.split('/').zip(path.split('/')) {
        let number = || format!("failed to read `{value}` in `{path}`: not a number");
        match name {
            "{id}" => found.id = value.parse().map_err(|_| Refusal::bad(number()))?,
            "{tid}" | "{pid}" => found.task = value.parse().map_err(|_| Refusal::bad(number()))?,
            _ => {}
        }
    }
    Ok(found)
}

fn matches(template: &str, path: &str) -> bool {
    let (mut parts, mut segments) = (template.split('/'), path.split('/'));
    loop {
        match (parts.next(), segments.next()) {
            (None, None) => return true,
            (Some(part), Some(word)) if part == word => {}
            (Some(part), Some(word)) if part.starts_with('{') && !word.is_empty() => {}
            _ => return false,
        }
    }
}

fn not_found(method: &str, path: &str, candidates: &[&Route]) -> Refusal {
    if candidates.is_empty() {
        let why = format!(
            "failed to find `{path}`: there is no such path; GET /v1/openapi.json lists them"
        );
        return Refusal::new(404, "not_found", why);
    }
    let methods: Vec<&str> = candidates.iter().map(|route| route.method).collect();
    let allow = methods.join(", ");
    let why = format!("failed to {method} `{path}`: it supports only {allow}");
    Refusal {
        allow: Some(allow),
        ..Refusal::new(405, "bad_request", why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_is_found_by_its_own_path() {
        for route in ROUTES {
            let path = route.path.replace("{id}", "7");
            let path = path.replace("{tid}", "8").replace("{pid}", "8");
            let found = find(route.method, &path).expect("it is there");
            assert_eq!(found.operation, route.operation);
            assert_eq!(found.id, if path.contains('7') { 7 } else { 0 });
            assert_eq!(found.task, if path.contains('8') { 8 } else { 0 });
        }
    }

    #[test]
    fn unknown_route_is_refused_with_the_available_ones() {
        let status = |method, path| find(method, path).expect_err("none").status;
        for path in [
            "/",
            "",
            "/v2",
            "/v1/",
            "/v1/profilers/",
            "/v1/profilers//threads",
            "*",
        ] {
            assert_eq!(status("GET", path), 404, "{path}");
        }
        assert_eq!(status("GET", "/v1/profilers/x"), 400);
        assert_eq!(status("GET", "/v1/profilers/1/threads/-1"), 400);
        assert_eq!(status("GET", "/v1/profilers/1/threads/4294967296"), 400);
        let refusal = find("PUT", "/v1/profilers/1").expect_err("no such method");
        assert_eq!(refusal.status, 405);
        assert_eq!(refusal.allow.as_deref(), Some("GET, PATCH, DELETE"));
    }
}
