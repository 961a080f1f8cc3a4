//! Services with buckets, and their settings in the environment.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use crate::listing::{ListingConnector, UnusableKeys};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server may send nothing while a request waits for it.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Attempts after the first one. With the backoff below, a server may be away for some six seconds.
const MAX_RETRIES: usize = 6;

const BACKOFF: BackoffConfig = BackoffConfig {
    init_backoff: Duration::from_millis(100),
    max_backoff: Duration::from_secs(4),
    base: 2.,
};

/// No attempt begins later than this after the first one.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// A service with buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketService {
    /// Amazon S3, and servers with its interface.
    S3,
    /// Google Cloud Storage, through its XML interface.
    Google,
}

/// Names of a service's settings, for messages.
pub(crate) struct SettingNames {
    pub(crate) to_get_credentials: &'static str,
    /// Credentials and rights.
    pub(crate) rights: &'static str,
    /// The setting that chooses the server.
    pub(crate) server: &'static str,
}

impl BucketService {
    pub(crate) const ALL: [BucketService; 2] = [BucketService::S3, BucketService::Google];

    /// Scheme of its URLs.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            BucketService::S3 => "s3",
            BucketService::Google => "gs",
        }
    }

    /// The service of a URL, and what follows `scheme://`.
    pub(crate) fn of_url(url: &str) -> Option<(BucketService, &str)> {
        BucketService::ALL.into_iter().find_map(|service| {
            let rest = url.strip_prefix(service.scheme())?.strip_prefix("://")?;
            Some((service, rest))
        })
    }

    pub(crate) fn settings(self) -> SettingNames {
        match self {
            BucketService::S3 => SettingNames {
                to_get_credentials: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
                                     AWS_SKIP_SIGNATURE=true for a public bucket",
                rights: "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and the \
                         bucket's policy, which must allow s3:ListBucket, s3:GetObject and, to add, \
                         s3:PutObject and s3:DeleteObject",
                server: "AWS_ENDPOINT_URL and AWS_REGION",
            },
            BucketService::Google => SettingNames {
                to_get_credentials: "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service \
                                     account, run `gcloud auth application-default login`, or set \
                                     GOOGLE_SKIP_SIGNATURE=true for a public bucket",
                rights: "GOOGLE_APPLICATION_CREDENTIALS and the account's roles, which must allow \
                         storage.objects.list, storage.objects.get and, to add, \
                         storage.objects.create and storage.objects.delete",
                server: "GOOGLE_BASE_URL",
            },
        }
    }

    /// Opens a bucket with the settings of the environment. It is not asked yet. Listings leave out
    /// unusable keys and add them to `unusable`.
    pub(crate) fn open(
        self,
        bucket: &str,
        environment: impl IntoIterator<Item = (String, String)>,
        unusable: UnusableKeys,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        // Fails if there is a provider already, which is then used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        match self {
            BucketService::S3 => s3(bucket, environment, unusable),
            BucketService::Google => google(bucket, environment, unusable),
        }
    }
}

fn s3(
    bucket: &str,
    environment: impl IntoIterator<Item = (String, String)>,
    unusable: UnusableKeys,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::new();
    let mut is_plain = false;
    for (variable, value) in environment {
        if !variable.starts_with("AWS_") {
            continue;
        }
        is_plain |= variable.starts_with("AWS_ENDPOINT_URL") && value.starts_with("http://");
        if let Ok(key) = variable.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_client_options(client(is_plain))
        .with_http_connector(ListingConnector { unusable })
        .with_retry(retries());
    Ok(Arc::new(builder.build()?))
}

fn google(
    bucket: &str,
    environment: impl IntoIterator<Item = (String, String)>,
    unusable: UnusableKeys,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = GoogleCloudStorageBuilder::new();
    let mut is_plain = false;
    for (variable, value) in environment {
        if !variable.starts_with("GOOGLE_") {
            continue;
        }
        is_plain |= variable == "GOOGLE_BASE_URL" && value.starts_with("http://");
        if let Ok(key) = variable.to_ascii_lowercase().parse::<GoogleConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_client_options(client(is_plain))
        .with_http_connector(ListingConnector { unusable })
        .with_retry(retries());
    Ok(Arc::new(builder.build()?))
}

/// Creates the client's options. `is_plain` allows HTTP without TLS, for a server whose address is
/// given as `http://`. The services' own tools do the same.
fn client(is_plain: bool) -> ClientOptions {
    ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(READ_TIMEOUT)
        // A large object may take long, as long as data arrives.
        .with_timeout_disabled()
        .with_allow_http(is_plain)
}

fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BACKOFF,
        max_retries: MAX_RETRIES,
        retry_timeout: RETRY_TIMEOUT,
    }
}
