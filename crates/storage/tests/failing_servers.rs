//! Servers that fail. Each answers its connections according to a script.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use memgauge_storage::{Result, Store};

/// How a connection is answered.
#[derive(Clone)]
enum Answer {
    /// With these bytes, after which the connection ends.
    Bytes(String),
    /// Never, until the test ends.
    Nothing,
}

fn answer(status: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Bytes(format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: \"1\"\r\nLast-Modified: Sat, 28 Nov 2026 \
         12:00:00 GMT\r\nConnection: close\r\n\r\n{body}"
    ))
}

fn s3_error(status: &str, code: &str) -> Answer {
    answer(status, &format!("<Error><Code>{code}</Code></Error>"))
}

/// A store whose server gives these answers.
fn store(answers: Vec<Answer>) -> Store {
    let address = serve(answers);
    let environment = [
        ("AWS_ENDPOINT_URL", address.as_str()),
        ("AWS_ACCESS_KEY_ID", "testing"),
        ("AWS_SECRET_ACCESS_KEY", "testing"),
    ];
    opened("s3://bucket/prefix", &environment)
}

/// The same of Google's service.
fn google_store(answers: Vec<Answer>) -> Store {
    let address = serve(answers);
    let environment = [
        ("GOOGLE_BASE_URL", address.as_str()),
        ("GOOGLE_BEARER_TOKEN", "testing"),
    ];
    opened("gs://bucket/prefix", &environment)
}

fn opened(url: &str, environment: &[(&str, &str)]) -> Store {
    let environment = environment.iter();
    let owned = environment.map(|&(name, value)| (name.to_owned(), value.to_owned()));
    Store::open_in(url, owned).expect("a store")
}

/// Address of a server that gives these answers, one for each connection, and repeats the last one. The
/// thread ends with the test.
fn serve(answers: Vec<Answer>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut answers = answers.into_iter().peekable();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let answer = match answers.len() {
                1 => answers.peek().cloned(),
                _ => answers.next(),
            };
            read_request(&mut stream);
            match answer.expect("an answer") {
                Answer::Bytes(bytes) => drop(stream.write_all(bytes.as_bytes())),
                Answer::Nothing => kept.push(stream),
            }
        }
    });
    format!("http://127.0.0.1:{port}")
}

/// Reads the header and body, so that closing the connection resets nothing.
fn read_request(stream: &mut TcpStream) {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) <= 2 {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().expect("a number");
        }
    }
    let _ = reader.read_exact(&mut vec![0; length]);
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn a_server_that_is_busy_is_asked_again() {
    let busy = s3_error("503 Service Unavailable", "SlowDown");
    let store = store(vec![busy.clone(), busy, answer("200 OK", "here")]);
    let read = store.get("x").expect("an answer");
    assert_eq!(read.as_deref(), Some(b"here".as_slice()));
}

#[test]
fn a_server_that_stalls_is_asked_again() {
    let store = store(vec![Answer::Nothing, answer("200 OK", "here")]);
    let read = store.get("x").expect("an answer");
    assert_eq!(read.as_deref(), Some(b"here".as_slice()));
    let store = self::store(vec![Answer::Nothing, answer("200 OK", "")]);
    assert!(
        store
            .put_if_absent("x", b"new".to_vec())
            .expect("an answer")
    );
}

#[test]
fn a_put_that_was_carried_out_without_an_answer_is_found() {
    let exists = s3_error("412 Precondition Failed", "PreconditionFailed");
    let store = store(vec![Answer::Nothing, exists]);
    assert!(
        !store
            .put_if_absent("x", b"new".to_vec())
            .expect("an answer")
    );
}

/// The first six bytes of ten.
fn cut_off() -> Answer {
    match answer("200 OK", "0123456789") {
        Answer::Bytes(whole) => Answer::Bytes(whole[..whole.len() - 4].to_owned()),
        Answer::Nothing => Answer::Nothing,
    }
}

/// The last four bytes, as far as they are sent.
fn rest(sent: &str) -> Answer {
    Answer::Bytes(format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\nContent-Range: bytes 6-9/10\r\nETag: \"1\"\r\n\
         Last-Modified: Sat, 28 Nov 2026 12:00:00 GMT\r\nConnection: close\r\n\r\n{sent}"
    ))
}

#[test]
fn an_object_that_is_cut_off_is_read_on() {
    let read = store(vec![cut_off(), rest("6789")]).get("x");
    assert_eq!(
        read.expect("an answer").as_deref(),
        Some(b"0123456789".as_slice())
    );
}

#[test]
fn an_object_that_stays_cut_off_is_an_error() {
    let store = store(vec![cut_off(), rest("")]);
    let read = message(store.get("x"));
    assert!(
        read.starts_with("failed to read `s3://bucket/prefix/x`: the connection was cut off"),
        "{read}"
    );
    let copied = message(store.download("x", None));
    assert!(
        copied.starts_with("failed to read `s3://bucket/prefix/x`: "),
        "{copied}"
    );
}

#[test]
fn refusals_name_what_to_change() {
    let cases = [
        (
            s3_error("403 Forbidden", "InvalidAccessKeyId"),
            "access denied (InvalidAccessKeyId); check AWS_ACCESS_KEY_ID",
        ),
        (
            s3_error("401 Unauthorized", "Unauthorized"),
            "access denied (Unauthorized); check AWS_ACCESS_KEY_ID",
        ),
        (
            s3_error("404 Not Found", "NoSuchBucket"),
            "there is no such bucket; create it",
        ),
        (
            answer("301 Moved Permanently", ""),
            "the bucket is in another region; set AWS_REGION",
        ),
        (
            s3_error("501 Not Implemented", "NotImplemented"),
            "the server cannot do this",
        ),
    ];
    for (refusal, why) in cases {
        let store = store(vec![refusal]);
        for said in [
            message(store.get("x")),
            message(store.list("")),
            message(store.put_if_absent("x", Vec::new())),
        ] {
            assert!(said.contains(why), "{said}");
        }
    }
}

#[test]
fn refusals_of_google_name_its_settings() {
    let cases = [
        (
            s3_error("403 Forbidden", "AccessDenied"),
            "access denied (AccessDenied); check GOOGLE_APPLICATION_CREDENTIALS",
        ),
        (
            s3_error("404 Not Found", "NoSuchBucket"),
            "there is no such bucket; create it, or correct its name or GOOGLE_BASE_URL",
        ),
    ];
    for (refusal, why) in cases {
        let store = google_store(vec![refusal]);
        for said in [message(store.get("x")), message(store.list(""))] {
            assert!(said.contains(why) && !said.contains("AWS"), "{said}");
        }
    }
    let exists = s3_error("412 Precondition Failed", "PreconditionFailed");
    let put = google_store(vec![exists]).put_if_absent("x", b"new".to_vec());
    assert!(!put.expect("an answer"));
    let unreachable = [
        ("GOOGLE_BASE_URL", "http://127.0.0.1:1"),
        ("GOOGLE_SKIP_SIGNATURE", "true"),
    ];
    let said = message(opened("gs://bucket", &unreachable).get("x"));
    assert!(
        said.contains("cannot reach the server") && said.contains("GOOGLE_BASE_URL"),
        "{said}"
    );
}

#[test]
fn an_object_that_is_missing_is_none() {
    let store = store(vec![s3_error("404 Not Found", "NoSuchKey")]);
    assert_eq!(store.get("x").expect("an answer"), None);
    assert!(store.download("x", None).expect("an answer").is_none());
}

#[test]
fn one_key_that_is_no_path_does_not_hide_the_others() {
    let object = |key: &str| {
        format!(
            "<Contents><Key>prefix/{key}</Key><LastModified>2026-11-28T12:00:00.000Z</LastModified>\
             <ETag>\"1\"</ETag><Size>5</Size></Contents>"
        )
    };
    let keys = ["a.mg.tar", "../b.mg.tar", "c//d.mg.tar", "e &amp; f.mg.tar"];
    let objects: String = keys.iter().map(|key| object(key)).collect();
    let listing = format!(
        "<ListBucketResult><KeyCount>4</KeyCount><IsTruncated>false</IsTruncated>{objects}\
         </ListBucketResult>"
    );
    for store in [
        store(vec![answer("200 OK", &listing)]),
        google_store(vec![answer("200 OK", &listing)]),
    ] {
        let listed = store.list_all("").expect("a listing");
        let paths: Vec<&str> = listed.objects.iter().map(|object| &*object.path).collect();
        assert_eq!(paths, ["a.mg.tar", "e & f.mg.tar"]);
        assert_eq!(listed.unusable, ["../b.mg.tar", "c//d.mg.tar"]);
    }
}
