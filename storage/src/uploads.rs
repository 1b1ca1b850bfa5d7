//! Large objects go up in parts, and parts of uploads that were broken off are removed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{ObjectStoreExt, PutPayload};
use serde::Deserialize;

use crate::error::StorageError;
use crate::object::Object;

/// What is sent in one request; the parts of an S3 upload have at least 5 MiB.
const PART: u64 = 8 << 20;
/// S3 takes so many parts.
const MOST_PARTS: u64 = 10_000;
/// How often an upload is begun anew, when a part or the end of it failed after its own retries.
const TRIES: u32 = 3;

impl Object {
    /// Sends a whole file, in parts where it is large; the object appears when all of it is there.
    ///
    /// # Errors
    /// See [`StorageError`]; [`StorageError::Local`] for the file.
    pub fn send(&self, file: &Arc<File>, size: u64) -> Result<(), StorageError> {
        if size <= PART {
            let bytes = read_part(file, 0, size);
            return self
                .write(bytes.map_err(|source| StorageError::Local { url: self.url.clone(), source })?);
        }
        let before = self.version().ok();
        let mut tries = 0;
        loop {
            tries += 1;
            match self.send_in_parts(file, size) {
                // The answer to the last request may have been lost: then there is a new object.
                Err(StorageError::Failed { .. } | StorageError::Missing { .. })
                    if self.version().is_ok_and(|now| now.size == size && Some(now) != before) =>
                {
                    break;
                }
                Err(error @ StorageError::Failed { .. }) if tries < TRIES => {
                    tracing::warn!("{error}; sending it again");
                }
                Err(StorageError::Missing { .. }) if tries < TRIES => {
                    tracing::warn!(
                        "{}: the upload is gone, another process may have taken it for abandoned",
                        self.url
                    );
                }
                sent => {
                    sent?;
                    break;
                }
            }
        }
        self.stores.counters.sent(size);
        Ok(())
    }

    fn send_in_parts(&self, file: &Arc<File>, size: u64) -> Result<(), StorageError> {
        let (store, key) = self.target();
        let file = Arc::clone(file);
        let part = PART.max(size.div_ceil(MOST_PARTS));
        let sending = async move {
            let mut upload = store.put_multipart(&key).await?;
            let sent = async {
                let mut flying = tokio::task::JoinSet::new();
                for start in (0..size).step_by(part as usize) {
                    let (file, length) = (Arc::clone(&file), part.min(size - start));
                    let read = tokio::task::spawn_blocking(move || read_part(&file, start, length)).await?;
                    let bytes = read.map_err(|error| object_store::Error::Generic {
                        store: "file",
                        source: Box::new(error),
                    })?;
                    flying.spawn(upload.put_part(PutPayload::from_bytes(bytes)));
                    if flying.len() == PARTS_AT_ONCE
                        && let Some(done) = flying.join_next().await
                    {
                        done??;
                    }
                }
                while let Some(done) = flying.join_next().await {
                    done??;
                }
                upload.complete().await
            };
            match sent.await {
                Ok(_) => Ok(()),
                Err(error) => {
                    // If this fails too, `abort_uploads` finds it later.
                    let _ = upload.abort().await;
                    Err(error)
                }
            }
        };
        self.stores.wait(&self.url, sending).map_err(|error| StorageError::new(&self.url, error))
    }

    /// Removes the parts of uploads below this prefix that were begun and never ended: those of a process that
    /// was killed, or whose beginning was answered and the answer lost. The number of them. Only S3 tells of
    /// them; other stores forget them by themselves.
    ///
    /// # Errors
    /// See [`StorageError`].
    pub fn abort_uploads(&self) -> Result<usize, StorageError> {
        let Some((s3, client)) = self.bucket.s3.clone() else { return Ok(0) };
        if self.key.as_ref().is_empty() {
            // All of a bucket is not one job's.
            return Ok(0);
        }
        let prefix = self.key.to_string();
        let aborting = async move {
            let mut aborted = 0;
            let mut after = (String::new(), String::new());
            loop {
                let page = list_uploads(&s3, &client, &prefix, &after).await?;
                for upload in page.uploads.iter().filter(|upload| is_below(&upload.key, &prefix)) {
                    let query = [("uploadId", upload.upload_id.as_str())];
                    // A key that packd cannot have written.
                    let Ok(key) = Path::parse(&upload.key) else { continue };
                    let (status, body) = signed(&s3, &client, "DELETE", &key, query).await?;
                    if status != 204 && status != 404 {
                        return Err(unexpected("AbortMultipartUpload", status, &body));
                    }
                    aborted += 1;
                }
                if !page.is_truncated {
                    return Ok(aborted);
                }
                after = (page.next_key_marker, page.next_upload_id_marker);
            }
        };
        self.stores.wait(&self.url, aborting).map_err(|error| StorageError::new(&self.url, error))
    }
}

/// Parts of one file in flight.
const PARTS_AT_ONCE: usize = 4;

fn read_part(file: &File, start: u64, length: u64) -> std::io::Result<Bytes> {
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, start)?;
    Ok(bytes.into())
}

fn is_below(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix).is_some_and(|rest| prefix.is_empty() || rest.starts_with('/') || rest.is_empty())
}

/// The answer to ListMultipartUploads.
/// <https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListMultipartUploads.html>
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Uploads {
    #[serde(rename = "Upload")]
    uploads: Vec<Upload>,
    is_truncated: bool,
    next_key_marker: String,
    next_upload_id_marker: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Upload {
    key: String,
    upload_id: String,
}

async fn list_uploads(
    s3: &AmazonS3,
    client: &HttpClient,
    prefix: &str,
    (key, upload): &(String, String),
) -> object_store::Result<Uploads> {
    let mut query = vec![("uploads", ""), ("prefix", prefix)];
    if !key.is_empty() {
        query.extend([("key-marker", key.as_str()), ("upload-id-marker", upload.as_str())]);
    }
    let (status, body) = signed(s3, client, "GET", &Path::default(), query).await?;
    if status != 200 {
        return Err(unexpected("ListMultipartUploads", status, &body));
    }
    quick_xml::de::from_reader(body.as_ref())
        .map_err(|source| object_store::Error::Generic { store: "S3", source: Box::new(source) })
}

/// Sends a request that the client itself does not offer; repeats it while the store asks for patience.
async fn signed<'a>(
    s3: &AmazonS3,
    client: &HttpClient,
    method: &str,
    key: &Path,
    query: impl IntoIterator<Item = (&'a str, &'a str)> + Clone,
) -> object_store::Result<(u16, Bytes)> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic {
        store: "S3",
        source,
    };
    let method: reqwest::Method = method.parse().map_err(|error| failed(Box::new(error)))?;
    let mut pause = Duration::from_millis(100);
    let mut tries = 0;
    loop {
        let options = SignedUrlOptions::new().with_query(query.clone());
        let url = s3.signed_url_opts(method.clone(), key, SIGNED_FOR, &options).await?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method.clone();
        *request.uri_mut() = url.as_str().parse().map_err(|error| failed(Box::new(error)))?;
        tries += 1;
        match client.execute(request).await {
            Ok(answer) if answer.status().as_u16() < 500 || tries == SIGNED_TRIES => {
                let status = answer.status().as_u16();
                match answer.into_body().bytes().await {
                    Ok(body) => return Ok((status, body)),
                    Err(error) if tries == SIGNED_TRIES => return Err(failed(Box::new(error))),
                    Err(_) => {}
                }
            }
            Err(error) if tries == SIGNED_TRIES => return Err(failed(Box::new(error))),
            _ => {}
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

const SIGNED_TRIES: u32 = 7;
/// As much as stores tolerate of a clock that is wrong.
const SIGNED_FOR: Duration = Duration::from_secs(900);

fn unexpected(request: &str, status: u16, body: &[u8]) -> object_store::Error {
    // Only the code: the rest may repeat what the request was signed with.
    let text = String::from_utf8_lossy(body);
    let code =
        text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    let message = format!("{request}: {status} {}", code.unwrap_or_default());
    object_store::Error::Generic { store: "S3", source: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_uploads_is_read() {
        let text = r#"<?xml version="1.0"?><ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
          <Bucket>b</Bucket><KeyMarker></KeyMarker><NextKeyMarker>out/z</NextKeyMarker><NextUploadIdMarker>9</NextUploadIdMarker>
          <MaxUploads>2</MaxUploads><IsTruncated>true</IsTruncated>
          <Upload><Key>out/a.tar</Key><UploadId>1</UploadId><Initiator><ID>x</ID></Initiator></Upload>
          <Upload><Key>outside/a.tar</Key><UploadId>2</UploadId></Upload></ListMultipartUploadsResult>"#;
        let page: Uploads = quick_xml::de::from_str(text).unwrap();
        assert!(page.is_truncated && page.next_key_marker == "out/z" && page.next_upload_id_marker == "9");
        let keys: Vec<_> = page.uploads.iter().map(|upload| upload.key.as_str()).collect();
        assert_eq!(keys, ["out/a.tar", "outside/a.tar"]);
        assert!(is_below("out/a.tar", "out") && !is_below("outside/a.tar", "out") && is_below("x", ""));
        let empty: Uploads = quick_xml::de::from_str("<ListMultipartUploadsResult/>").unwrap();
        assert!(empty.uploads.is_empty() && !empty.is_truncated);
    }
}
