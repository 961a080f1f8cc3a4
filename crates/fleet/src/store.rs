//! The storage of a dataset: a folder.
//!
//! All access goes through `object_store`, so that a bucket needs only another way to open it. `object_store` is
//! asynchronous, and this crate is not. Without a runtime it makes its system calls in the calling
//! thread, so waiting for its futures costs nothing.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_executor::block_on;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use crate::error::{Error, ErrorKind, Result};

/// A folder with objects.
#[derive(Clone)]
pub(crate) struct Store {
    objects: Arc<dyn ObjectStore>,
    /// As the user named it.
    name: String,
}

/// An object in a listing.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// Path within the store.
    pub(crate) path: String,
    pub(crate) modified: SystemTime,
}

impl Store {
    /// Opens a folder, which must exist.
    pub(crate) fn open(name: &str) -> Result<Store> {
        if name.contains("://") {
            let message =
                format!("failed to open dataset `{name}`: use a folder; URLs are not supported");
            return Err(Error::new(ErrorKind::Storage, message));
        }
        let objects = LocalFileSystem::new_with_prefix(name)
            .map_err(|why| Error::storage(format_args!("open dataset `{name}`"), &why))?;
        Ok(Store {
            objects: Arc::new(objects),
            name: name.to_owned(),
        })
    }

    /// As the user named it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn location(path: &str) -> Result<ObjectPath> {
        // Paths are encoded already; `ObjectPath::from` would do so again.
        ObjectPath::parse(path)
            .map_err(|why| Error::storage(format_args!("use path `{path}`"), &why))
    }

    /// Reads a whole object. `None` if there is none.
    pub(crate) fn get(&self, path: &str) -> Result<Option<Bytes>> {
        let full = Store::location(path)?;
        let read = block_on(async { self.objects.get(&full).await?.bytes().await });
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(why) => Err(Error::storage(
                format_args!("read `{}/{path}`", self.name),
                &why,
            )),
        }
    }

    /// Writes an object if there is none of this path. Returns false if there is one.
    pub(crate) fn put_if_absent(&self, path: &str, bytes: Vec<u8>) -> Result<bool> {
        let full = Store::location(path)?;
        let options = PutOptions::from(PutMode::Create);
        let put = self
            .objects
            .put_opts(&full, PutPayload::from(bytes), options);
        match block_on(put) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(why) => Err(Error::storage(
                format_args!("write `{}/{path}`", self.name),
                &why,
            )),
        }
    }

    /// All objects below a folder, sorted by path.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<Object>> {
        let full = Store::location(folder)?;
        let found = block_on(self.objects.list(Some(&full)).try_collect::<Vec<_>>());
        let found = found
            .map_err(|why| Error::storage(format_args!("list `{}/{folder}`", self.name), &why))?;
        let mut objects: Vec<Object> = (found.into_iter())
            .map(|meta| Object {
                path: meta.location.as_ref().to_owned(),
                modified: meta.last_modified.into(),
            })
            .collect();
        objects.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(objects)
    }

    /// Removes an object. It may be gone already.
    pub(crate) fn delete(&self, path: &str) -> Result<()> {
        let full = Store::location(path)?;
        match block_on(self.objects.delete(&full)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(why) => Err(Error::storage(
                format_args!("remove `{}/{path}`", self.name),
                &why,
            )),
        }
    }
}
