"""/multi_state/chat/completions: turns that grow from any earlier one."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.turns import BRANCH_PATH, GREEDY, branch, continued, text_of


def test_branches_grow_from_any_branch_and_leave_it_as_it_is(api, session):
    root = branch(api, session, 0, "One").reply
    assert (root["id"], root["dialogue_idx"]) == ("rwkv7-multi-state", 1)
    first = root["choices"][0]["message"]["content"]
    for number, prompt in enumerate(("Left", "Right", "Left"), start=2):
        reply = branch(api, session, 1, prompt).reply
        assert reply["dialogue_idx"] == number
        assert reply["choices"][0]["message"]["content"] == continued(api, f"One{first}\n\n{prompt}")
    left = text_of(branch(api, session, 2, "On"))
    assert left == continued(api, f"One{first}\n\nLeft{continued(api, f'One{first}' + chr(10) * 2 + 'Left')}\n\nOn")
    again = branch(api, session, 0, "One").reply
    assert again["choices"][0]["message"]["content"] == first


def test_the_stream_of_a_branch_ends_with_its_number(api, session):
    *_, last, done, rest = branch(api, session, 0, "One", stream=True).body.split(b"\n\n")
    assert (
        last == b'data: {"object":"multi_state.dialogue_idx","session_id":"%b:1","dialogue_idx":1}' % session.encode()
    )
    assert (done, rest) == (b"data: [DONE]", b"")


def test_branches_made_at_once_get_different_numbers(api, session):
    branch(api, session, 0, "One")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: branch(api, session, 1, f"Branch {n}"), range(8)))
    assert sorted(answer.reply["dialogue_idx"] for answer in answers) == list(range(2, 10))


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"session_id": "b"}, 400, "Missing dialogue_idx parameter"),
        ({"dialogue_idx": 0}, 400, "Missing session_id parameter"),
        ({"session_id": "b", "dialogue_idx": 7}, 404, "State not found for dialogue_idx=7"),
        ({"session_id": "b", "dialogue_idx": 0, "contents": []}, 400, "Request must contain exactly one prompt"),
    ],
)
def test_bad_branches_are_refused(api, body, status, message):
    answer = api.post(BRANCH_PATH, {"contents": ["a"], **GREEDY} | body)
    assert (answer.status, answer.json) == (status, {"error": message})
