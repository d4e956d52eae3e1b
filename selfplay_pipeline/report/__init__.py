"""Views of results for people: the page, the plots and episodes in the terminal. Reads the files of the stages."""
