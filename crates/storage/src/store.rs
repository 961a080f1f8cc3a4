//! A folder or a bucket's prefix.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::prefix::PrefixStore;
use object_store::{
    Error as ObjectError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use tempfile::{NamedTempFile, TempPath};
use tokio::runtime::Runtime;
use url::Url;

use crate::bucket::BucketService;
use crate::error::{Error, Result, is_timeout};
use crate::listing::UnusableKeys;

/// Larger files are uploaded in parts of this size. S3 has at most 10 000 parts.
const UPLOAD_PART_BYTES: usize = 16 << 20;

/// A folder or a bucket's prefix.
#[derive(Clone)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// As the user named it.
    name: String,
    /// Where a folder is.
    folder: Option<PathBuf>,
    /// Buckets have a service and a runtime.
    service: Option<BucketService>,
    runtime: Option<Arc<Runtime>>,
    /// Prefix of a bucket's keys: empty, or ending in a slash.
    prefix: String,
    unusable: UnusableKeys,
}

/// Objects of a bucket or files of a folder.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Sorted by path.
    pub objects: Vec<Object>,
    /// Paths of objects in a bucket that cannot be read, because they are no paths: with an empty part, `.`, `..` or
    /// a control character.
    pub unusable: Vec<String>,
}

/// An object in a listing.
#[derive(Clone, Debug)]
pub struct Object {
    /// Path within the store.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// When it was written.
    pub modified: SystemTime,
}

/// A file of this machine with the contents of an object. It is private, and removed when this is
/// dropped.
#[derive(Debug)]
pub struct LocalCopy(TempPath);

impl LocalCopy {
    /// Path of the copy.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// A file that becomes the one at this path, private to the user as are the folders that are made for it.
fn new_file(path: &Path) -> std::io::Result<NamedTempFile> {
    let folder = path.parent().unwrap_or(path);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    NamedTempFile::new_in(folder)
}

/// Copies a file to a path, where it appears when it is complete.
fn copy_into(path: &Path, file: &mut File) -> std::io::Result<()> {
    let mut copy = new_file(path)?;
    std::io::copy(file, &mut copy)?;
    copy.persist(path).map(drop).map_err(|why| why.error)
}

/// Writes a file, which appears when it is complete. Returns false if there is one.
fn create(path: &Path, bytes: &[u8]) -> std::io::Result<bool> {
    let mut file = new_file(path)?;
    file.write_all(bytes)?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(why) if why.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(why) => Err(why.error),
    }
}

/// Writes a file as an object, a large one in parts.
async fn send(
    objects: &dyn ObjectStore,
    location: &ObjectPath,
    file: &mut File,
) -> std::result::Result<(), ObjectError> {
    let mut part = next_part(file)?;
    if part.len() < UPLOAD_PART_BYTES {
        return objects.put(location, part.into()).await.map(drop);
    }
    let mut upload = objects.put_multipart(location).await?;
    let sent = async {
        while !part.is_empty() {
            upload.put_part(part.into()).await?;
            part = next_part(file)?;
        }
        upload.complete().await
    };
    let sent = sent.await;
    if sent.is_err() {
        // A server keeps the parts of an upload that is not completed, which costs money. If it cannot be reached,
        // only a rule of the bucket can remove it.
        let _ = upload.abort().await;
    }
    sent.map(drop)
}

fn next_part(file: &mut File) -> std::result::Result<Vec<u8>, ObjectError> {
    let mut part = Vec::new();
    let read = file.take(UPLOAD_PART_BYTES as u64).read_to_end(&mut part);
    read.map(|_| part).map_err(|why| ObjectError::Generic {
        store: "file",
        source: Box::new(why),
    })
}

/// Whether a name is a URL rather than a path.
pub fn is_url(name: &str) -> bool {
    // RFC 8089 also has the short form `file:/PATH`.
    name.contains("://") || name.starts_with("file:/")
}

/// The path that a name means: its own if it is a path, and that of a URL `file:///…` or `file:/…`. `None` for
/// buckets.
///
/// # Errors
/// The URL names neither.
pub fn local_path(name: &str) -> Result<Option<PathBuf>> {
    if !is_url(name) {
        return Ok(Some(PathBuf::from(name)));
    }
    let unusable = || {
        let why = "use a path, `file:///PATH`, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`";
        Error::new(format_args!("open `{name}`"), why)
    };
    if BucketService::of_url(name).is_some() {
        return Ok(None);
    }
    let url = Url::parse(name).map_err(|_| unusable())?;
    match url.scheme() {
        "file" => url.to_file_path().map(Some).map_err(|()| unusable()),
        _ => Err(unusable()),
    }
}

/// Copies the object of a bucket's URL to this machine.
///
/// # Errors
/// There is no such object, or as for [`Store::open`] and [`Store::download`].
pub fn fetch(url: &str) -> Result<LocalCopy> {
    let (folder, name) = url.rsplit_once('/').unwrap_or((url, ""));
    let copy = Store::open(folder)?.download(name, None)?;
    copy.ok_or_else(|| Error::new(format_args!("read `{url}`"), "there is no such object"))
}

impl Store {
    /// Opens a folder, which must exist, or a bucket's prefix. The bucket is not asked yet.
    ///
    /// # Errors
    /// The folder does not exist, or the URL or a setting of the environment cannot be used.
    pub fn open(name: &str) -> Result<Store> {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Store::open_in(name, std::env::vars_os().filter_map(text))
    }

    /// As [`open`](Self::open), with another environment.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_in(
        name: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Store> {
        if let Some((service, location)) = BucketService::of_url(name) {
            return Store::bucket(name, service, location, environment);
        }
        let path = local_path(name)?.unwrap_or_default();
        let objects = LocalFileSystem::new_with_prefix(&path)
            .map_err(|why| Error::of_object(format_args!("open `{name}`"), &why, None))?;
        Ok(Store {
            objects: Arc::new(objects),
            name: name.to_owned(),
            folder: Some(path),
            service: None,
            runtime: None,
            prefix: String::new(),
            unusable: UnusableKeys::default(),
        })
    }

    fn bucket(
        name: &str,
        service: BucketService,
        location: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Store> {
        let (bucket, prefix) = location.split_once('/').unwrap_or((location, ""));
        if bucket.is_empty() {
            let scheme = service.scheme();
            let why = format!("it names no bucket; use `{scheme}://BUCKET/PREFIX`");
            return Err(Error::new(format_args!("open `{name}`"), why));
        }
        let unusable = UnusableKeys::default();
        let objects = service
            .open(bucket, environment, unusable.clone())
            .map_err(|why| Error::of_object(format_args!("open `{name}`"), &why, Some(service)))?;
        let prefix = ObjectPath::parse(prefix)
            .map_err(|why| Error::new(format_args!("open `{name}`"), why))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|why| Error::new(format_args!("open `{name}`"), why))?;
        Ok(Store {
            prefix: match prefix.as_ref() {
                "" => String::new(),
                prefix => format!("{prefix}/"),
            },
            unusable,
            objects: Arc::new(PrefixStore::new(objects, prefix)),
            name: name.trim_end_matches('/').to_owned(),
            folder: None,
            service: Some(service),
            runtime: Some(Arc::new(runtime)),
        })
    }

    /// As the user named it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of an object, for messages and as an argument of other commands.
    pub fn name_of(&self, path: &str) -> String {
        match path {
            "" => self.name.clone(),
            path => format!("{}/{path}", self.name.trim_end_matches('/')),
        }
    }

    fn wait<F: Future>(&self, future: F) -> F::Output {
        match &self.runtime {
            None => futures_executor::block_on(future),
            Some(runtime) => runtime.block_on(future),
        }
    }

    fn location(&self, path: &str) -> Result<ObjectPath> {
        // Paths are encoded already; `ObjectPath::from` would do so again.
        ObjectPath::parse(path)
            .map_err(|why| Error::new(format_args!("use `{}`", self.name_of(path)), why))
    }

    fn cannot_read(&self, path: &str, why: &ObjectError) -> Error {
        Error::of_object(
            format_args!("read `{}`", self.name_of(path)),
            why,
            self.service,
        )
    }

    fn cannot_write(&self, path: &str, why: &ObjectError) -> Error {
        Error::of_object(
            format_args!("write `{}`", self.name_of(path)),
            why,
            self.service,
        )
    }

    /// Reads a whole object. `None` if it does not exist.
    ///
    /// # Errors
    /// The storage fails.
    pub fn get(&self, path: &str) -> Result<Option<Bytes>> {
        let location = self.location(path)?;
        let read = self.wait(async { self.objects.get(&location).await?.bytes().await });
        self.if_found(path, read)
    }

    /// Copies an object to this machine, or as many as `max_bytes` of its first bytes. `None` if it does
    /// not exist.
    ///
    /// # Errors
    /// The storage fails, or the copy cannot be written.
    pub fn download(&self, path: &str, max_bytes: Option<u64>) -> Result<Option<LocalCopy>> {
        let location = self.location(path)?;
        let failed = |why: std::io::Error| {
            let what = format!("copy `{}` to the temporary folder", self.name_of(path));
            Error::new(what, why)
        };
        let mut copy = tempfile::Builder::new()
            .prefix("memgauge-")
            .suffix(".mg.tar")
            .tempfile()
            .map_err(failed)?;
        let mut write = Ok(());
        let read = self.wait(async {
            let options = object_store::GetOptions {
                range: max_bytes.map(|bytes| object_store::GetRange::Bounded(0..bytes)),
                ..Default::default()
            };
            let mut chunks = self
                .objects
                .get_opts(&location, options)
                .await?
                .into_stream();
            while let Some(chunk) = chunks.try_next().await? {
                write = copy.write_all(&chunk);
                if write.is_err() {
                    break;
                }
            }
            Ok(())
        });
        write.map_err(failed)?;
        let found = self.if_found(path, read)?;
        Ok(found.map(|()| LocalCopy(copy.into_temp_path())))
    }

    fn if_found<T>(
        &self,
        path: &str,
        read: std::result::Result<T, ObjectError>,
    ) -> Result<Option<T>> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(why @ ObjectError::NotFound { .. }) => {
                match why.to_string().contains("NoSuchBucket") {
                    true => Err(self.cannot_read(path, &why)),
                    false => Ok(None),
                }
            }
            Err(why) => Err(self.cannot_read(path, &why)),
        }
    }

    /// Writes an object if none has this path. Returns false if one has, which may be the one that this
    /// call wrote, if the server's first answer was lost. In a folder, it is private to the user.
    ///
    /// # Errors
    /// The storage fails.
    pub fn put_if_absent(&self, path: &str, bytes: Vec<u8>) -> Result<bool> {
        let location = self.location(path)?;
        if let Some(folder) = &self.folder {
            return create(&folder.join(location.as_ref()), &bytes)
                .map_err(|why| Error::new(format_args!("write `{}`", self.name_of(path)), why));
        }
        let payload = PutPayload::from(bytes);
        // `object_store` repeats all but timeouts, after which the object may have been written.
        // Then the next attempt finds it.
        for is_last in [false, false, true] {
            let options = PutOptions::from(PutMode::Create);
            let put = self.objects.put_opts(&location, payload.clone(), options);
            match self.wait(put) {
                Ok(_) => return Ok(true),
                Err(ObjectError::AlreadyExists { .. }) => return Ok(false),
                Err(why) if is_timeout(&why) && !is_last => {}
                Err(why) => return Err(self.cannot_write(path, &why)),
            }
        }
        Ok(false)
    }

    /// Writes a file's contents as an object, over one of the same path. Nobody sees a part of it. In a
    /// folder, it is private to the user.
    ///
    /// # Errors
    /// The file cannot be read, or the storage fails.
    pub fn upload(&self, path: &str, file: &mut File) -> Result<()> {
        let location = self.location(path)?;
        if let Some(folder) = &self.folder {
            return copy_into(&folder.join(location.as_ref()), file)
                .map_err(|why| Error::new(format_args!("write `{}`", self.name_of(path)), why));
        }
        self.wait(send(&*self.objects, &location, file))
            .map_err(|why| self.cannot_write(path, &why))
    }

    /// All objects below a folder, sorted by path. Objects in [`Listing::unusable`] are left out.
    ///
    /// # Errors
    /// The storage fails.
    pub fn list(&self, folder: &str) -> Result<Vec<Object>> {
        self.list_all(folder).map(|listing| listing.objects)
    }

    /// All objects below a folder.
    ///
    /// # Errors
    /// The storage fails.
    pub fn list_all(&self, folder: &str) -> Result<Listing> {
        let location = self.location(folder)?;
        let found = self.wait(self.objects.list(Some(&location)).try_collect::<Vec<_>>());
        let found = found.map_err(|why| {
            let what = format!("list `{}`", self.name_of(folder));
            Error::of_object(what, &why, self.service)
        })?;
        let mut objects: Vec<Object> = (found.into_iter())
            .map(|meta| Object {
                path: meta.location.as_ref().to_owned(),
                bytes: meta.size,
                modified: meta.last_modified.into(),
            })
            .collect();
        objects.sort_by(|a, b| a.path.cmp(&b.path));
        let folder = match folder {
            "" => self.prefix.clone(),
            folder => format!("{}{folder}/", self.prefix),
        };
        let unusable = self.unusable.below(&folder).into_iter();
        Ok(Listing {
            objects,
            unusable: unusable
                .map(|key| key[self.prefix.len()..].to_owned())
                .collect(),
        })
    }

    /// Removes an object. It may be gone already.
    ///
    /// # Errors
    /// The storage fails.
    pub fn delete(&self, path: &str) -> Result<()> {
        let location = self.location(path)?;
        match self.wait(self.objects.delete(&location)) {
            Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(why) => Err(Error::of_object(
                format_args!("remove `{}`", self.name_of(path)),
                &why,
                self.service,
            )),
        }
    }
}
