"""A student on a model hub: the methods of ``huggingface_hub``'s mixin, on the folder of ``save``.

That mixin itself would be a base class, which a package has to be installed for.
"""

from __future__ import annotations

import os
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, Self


class WithHub:
    """A student that goes to a hub and comes from there."""

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> None:
        """Write the folder that a hub shows; ``options`` are those of ``save``."""
        self.save(os.path.join(folder, ""), **options)  # type: ignore[attr-defined]

    def push_to_hub(
        self,
        repo_id: str,
        *,
        card: str | None = None,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
    ) -> str:
        """Upload the student to a repository of the Hugging Face hub, made where it is missing.

        Args:
            repo_id: Such as "me/iris".
            card: The model card, as of ``save``.
            private: Whether a new repository is.
            token: By default that of ``hf auth login``.
            revision: The branch.

        Returns:
            The address of the commit.

        Raises:
            ImportError: huggingface_hub is not installed.
        """
        hub = _hub().HfApi(token=token)
        repo_id = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, card=card)
            text = "Upload a student"
            return str(
                hub.upload_folder(
                    repo_id=repo_id, folder_path=folder, revision=revision, commit_message=text
                )
            )

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Read a student from a folder, or from a repository of the Hugging Face hub.

        No code is run: weights are safetensors, the description JSON.

        Args:
            name: A folder, or the name of a repository.
            revision: Branch, tag or commit of a repository.
            token: For private repositories.
            cache_dir: Where downloads are kept.
            options: Arguments of ``load``.

        Raises:
            ImportError: it is no folder, and huggingface_hub is not installed.
            ValueError: what is there is no student.
        """
        if not os.path.isdir(name):
            name = _hub().snapshot_download(
                os.fspath(name),
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                allow_patterns=["*.safetensors", "*.json", "*.md"],
            )
        return cls.load(os.path.join(name, ""), **options)  # type: ignore[attr-defined, no-any-return]


def _hub() -> Any:
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(
            "A hub needs the package huggingface_hub, which is not installed: "
            "pip install 'pyro-opu[hub]'. Folders and files need nothing."
        ) from error
