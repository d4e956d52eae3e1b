"""What people look at: the page, the plots and the terminal's view of episodes. Reads what the stages wrote."""
