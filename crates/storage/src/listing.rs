//! Listings of buckets in which some names cannot be used.
//!
//! A bucket's key may be any text. `object_store` takes it as a path, and fails a listing that has
//! one key with an empty part, `.`, `..` or a control character. Anybody who may write into a
//! bucket could thus make all of it unreadable with one object. The client here removes such keys
//! from the responses before `object_store` reads them, and keeps them for messages.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::path::Path as ObjectPath;

/// Parameter of requests that list.
const LISTING: &str = "list-type=2";

/// Keys that were left out of listings.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnusableKeys(Arc<Mutex<BTreeSet<String>>>);

impl UnusableKeys {
    /// Returns the names that begin with `prefix`.
    pub(crate) fn below(&self, prefix: &str) -> Vec<String> {
        let keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let below = keys.iter().filter(|key| key.starts_with(prefix));
        below.cloned().collect()
    }

    fn add(&self, keys: Vec<String>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(keys);
    }
}

/// Connects clients that leave unusable keys out of listings.
#[derive(Debug)]
pub(crate) struct ListingConnector {
    pub(crate) unusable: UnusableKeys,
}

impl HttpConnector for ListingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(ListingClient {
            client: ReqwestConnector::default().connect(options)?,
            unusable: self.unusable.clone(),
        }))
    }
}

#[derive(Debug)]
struct ListingClient {
    client: HttpClient,
    unusable: UnusableKeys,
}

#[async_trait]
impl HttpService for ListingClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_listing = request.uri().query().is_some_and(|q| q.contains(LISTING));
        let response = self.client.execute(request).await?;
        if !is_listing || !response.status().is_success() {
            return Ok(response);
        }
        let (mut head, body) = response.into_parts();
        let body = body.bytes().await?;
        let Ok(text) = std::str::from_utf8(&body) else {
            return Ok(HttpResponse::from_parts(head, body.into()));
        };
        let (usable, unusable) = without_unusable_keys(text);
        if unusable.is_empty() {
            return Ok(HttpResponse::from_parts(head, body.into()));
        }
        self.unusable.add(unusable);
        head.headers.remove("content-length");
        Ok(HttpResponse::from_parts(head, usable.into()))
    }
}

/// The response without objects that have unusable keys, and these keys.
fn without_unusable_keys(response: &str) -> (String, Vec<String>) {
    const END: &str = "</Contents>";
    let (mut usable, mut unusable) = (String::new(), Vec::new());
    let mut rest = response;
    while let Some(begin) = rest.find("<Contents>") {
        let Some(length) = rest[begin..].find(END) else {
            break;
        };
        let (before, object) = rest[..begin + length + END.len()].split_at(begin);
        usable.push_str(before);
        match key(object).filter(|key| ObjectPath::parse(key).is_err()) {
            Some(key) => unusable.push(key),
            None => usable.push_str(object),
        }
        rest = &rest[begin + length + END.len()..];
    }
    usable.push_str(rest);
    (usable, unusable)
}

fn key(object: &str) -> Option<String> {
    let key = object.split_once("<Key>")?.1.split_once("</Key>")?.0;
    Some(unescaped(key))
}

/// Text of XML without its references to characters. One that is unknown stays as it is.
fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let reference = after.split_once(';').and_then(|(name, after)| {
            let number = name.strip_prefix('#');
            let number = number.and_then(|number| match number.strip_prefix('x') {
                Some(digits) => u32::from_str_radix(digits, 16).ok(),
                None => number.parse().ok(),
            });
            let character = match name {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                "quot" => '"',
                "apos" => '\'',
                _ => char::from_u32(number?)?,
            };
            Some((character, after))
        });
        rest = match reference {
            Some((character, after)) => {
                plain.push(character);
                after
            }
            None => {
                plain.push('&');
                after
            }
        };
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_no_paths_are_left_out_of_a_listing() {
        let object = |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let listing = |keys: &[&str]| {
            let objects: String = keys.iter().map(|key| object(key)).collect();
            format!(
                "<ListBucketResult><Name>b</Name>{objects}<IsTruncated>false</IsTruncated></ListBucketResult>"
            )
        };
        let all = listing(&[
            "a/b",
            "a/../b",
            "a &amp; b",
            "a//b",
            "folder/",
            "a&#x1;b",
            "./c",
        ]);
        let (usable, unusable) = without_unusable_keys(&all);
        assert_eq!(usable, listing(&["a/b", "a &amp; b", "folder/"]));
        assert_eq!(unusable, ["a/../b", "a//b", "a\u{1}b", "./c"]);
        let cut = &all[..all.len() - 70];
        assert_eq!(without_unusable_keys(cut).1, ["a/../b", "a//b", "a\u{1}b"]);
    }

    #[test]
    fn references_to_characters_are_replaced() {
        assert_eq!(
            unescaped("&lt;a&gt;&quot;&apos;&amp;&#65;&#x42; & &no;"),
            "<a>\"'&AB & &no;"
        );
    }
}
