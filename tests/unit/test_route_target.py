"""To whom a question goes."""

from __future__ import annotations

from dats_common.domain.route_target import nothing_found, primary_tag, to_admin, to_owner


def test_the_tag_of_most_chunks_is_asked_about_and_public_is_nobodys() -> None:
    assert primary_tag([("public", "hr"), ("public", "finance"), ("finance",)]) == "finance"
    assert primary_tag([("public",), ()]) is None
    assert primary_tag([]) is None


def test_of_equally_frequent_tags_the_best_ranked_wins_and_then_the_name() -> None:
    assert primary_tag([("zoo",), ("aid",)]) == "zoo"
    assert primary_tag([("zoo", "aid")]) == "aid"


def test_a_tag_counts_once_for_a_chunk() -> None:
    assert primary_tag([("a", "a"), ("b",), ("b",)]) == "b"


def test_a_target_says_why() -> None:
    owner = to_owner("hr", user_id="u1", email="u1@example.org", why="Low confidence: 45%")
    assert (owner.tag, owner.owner_user_id, owner.owner_email, owner.fallback) == ("hr", "u1", "u1@example.org", False)
    assert owner.reason == "Low confidence: 45% - routing to hr owner"
    admin = to_admin(admin_email="admin@example.org", why="No owner for tag 'hr'")
    assert (admin.tag, admin.owner_user_id, admin.fallback) == ("system", None, True)
    assert admin.reason == "No owner for tag 'hr' - routing to admin"
    assert nothing_found(admin_email="admin@example.org").reason == "No relevant documents found"
